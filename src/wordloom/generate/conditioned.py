"""A SequenceToSequence with its sources read, which decodes as a CausalLM does.

    memory = model.encode(source, attend=attend)                          # B sources
    generate(Conditioned(model, memory), [[start]] * B, Sampling(temperature=0))

Greedy decoding, every sampling setting, streaming and beam search work as for a causal model.  A source is
read once, for any number of samples or beams.

There is one prefix for each source, and all prefixes of a batch have one length: the start token, or the
start token and as many forced tokens for every source.  Without a number of new tokens the limit is
``3 * source length + 50``, or the room that ``max_seq_len`` leaves.  That is nearly three times the length
that any pair of languages needs, and bounds the cost of a row that never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.nn.cache import Cache
from wordloom.nn.memory import Memory


class ConditionedCache:
    """The cache of the model's prefixes, and the memory of each row's source; rows move together."""

    def __init__(self, prefixes: Cache, memory: Memory) -> None:
        self.prefixes = prefixes
        self.memory = memory
        self.sources = torch.arange(len(memory.values))  # [B] the source that each row is written from

    def __getattr__(self, name: str) -> Any:
        return getattr(self.prefixes, name)  # lengths, layer(i), advance(tokens), truncate(lengths)

    def select(self, rows: Tensor) -> None:
        self.prefixes.select(rows)
        sources = self.sources[rows.cpu()]
        if not torch.equal(sources, self.sources):  # beams change places within a source at every step
            self.sources, self.memory = sources, self.memory.select(rows)

    def join(self, other: Self) -> None:
        """Add the rows of ``other``, whose model is this cache's, behind these rows."""
        self.prefixes.join(other.prefixes)
        self.memory = self.memory.join(other.memory)
        new = other.sources + (int(self.sources.max()) + 1 if len(self.sources) else 0)
        self.sources = torch.cat([self.sources, new])


class Conditioned:
    """``model`` writing from ``memory``: row b of every prefix belongs to row b of the memory.

    Everything else that a CausalLM has is the model's own: ``lm_head``, ``parameters()`` and so on.

    ``kept`` is a dict shared by several memories of one model that does not change.  The compiled programs
    check the model once and store their copy of the weights in it.
    """

    def __init__(self, model: Any, memory: Memory, *, kept: dict[str, Any] | None = None) -> None:
        self.model = model
        self.memory = memory
        self.config = model.config
        self.kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def new_cache(self, batch: int, length: int) -> Any:
        """Return an empty cache for a prefix of up to ``length`` tokens for each of the ``batch`` sources."""
        return ConditionedCache(self.model.new_cache(batch, length), self.memory)

    def hidden(self, tokens: Tensor, *, attend: None = None, cache: Any = None) -> Tensor:
        """tokens [B, T] -> [B, T, D]; ``cache`` is one of :meth:`new_cache`, or None."""
        if cache is None:
            return self.model.hidden(tokens, self.memory)
        return self.model.hidden(tokens, cache.memory, cache=cache.prefixes)

    def with_memory(self, memory: Memory) -> Conditioned:
        """Return the same model writing from other sources."""
        return Conditioned(self.model, memory, kept=self.kept)

    def select(self, rows: Tensor) -> Conditioned:
        """Return the same model writing from these sources, in this order."""
        return self.with_memory(self.memory.select(rows))

    def check(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Raise GenerationError unless there is one prefix per source, and all have one length."""
        if len(prefixes) != len(self.memory.values):
            raise GenerationError(
                f"{len(prefixes)} prefixes for {len(self.memory.values)} sources; give one for each, and "
                "samples=n for several texts of each"
            )
        lengths = sorted(set(map(len, prefixes)))
        if len(lengths) > 1:
            raise GenerationError(
                f"prefixes of {lengths[0]} and of {lengths[-1]} tokens; prefixes of one batch have one "
                "length: write to their sources in batches of their own"
            )

    def usual_new_tokens(self) -> list[int]:
        """Return the default limit of new tokens for each source: 3 times its length and 50."""
        B, S = self.memory.values.shape[:2]
        lengths = [S] * B if self.memory.attend is None else self.memory.attend.sum(dim=1).tolist()
        return [3 * length + 50 for length in lengths]
