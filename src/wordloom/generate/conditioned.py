"""A SequenceToSequence whose sources are read, seen as a CausalLM of what it writes.

    memory = model.encode(source, attend=attend)                          # B sources
    generate(Conditioned(model, memory), [[start]] * B, Sampling(temperature=0))

Greedy, every sampling setting, streaming and beam search run on it as they run on any causal model.  A
source is read once, however many samples or beams are written from it.

Prefixes are one per source and of one length: the start token, or the start token and as many forced
tokens for every source; SequenceToSequence has no padding on the left of a prefix.  Without a number of
new tokens the limit is ``3 * source length + 50``, or what ``max_seq_len`` leaves: nearly three times what
any pair of languages needs, and a row that never ends costs no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.models import Memory
from wordloom.nn.cache import Cache

__all__ = ["Conditioned", "ConditionedCache"]


class ConditionedCache:
    """What the model remembers of its prefixes, and the memory of each row's source; rows move together."""

    def __init__(self, prefixes: Cache, memory: Memory) -> None:
        self.prefixes = prefixes
        self.memory = memory
        self.sources = torch.arange(len(memory.values))  # [B] which source each row is written from

    @property
    def lengths(self) -> Tensor:
        return self.prefixes.lengths

    @property
    def longest(self) -> int:
        return self.prefixes.longest

    def layer(self, index: int) -> Any:
        return self.prefixes.layer(index)

    def advance(self, tokens: Tensor, attend: Tensor | None = None) -> None:
        self.prefixes.advance(tokens, attend)

    def select(self, rows: Tensor) -> None:
        self.prefixes.select(rows)
        sources = self.sources[rows.cpu()]
        if not torch.equal(sources, self.sources):  # beams change places within a source at every step
            self.sources, self.memory = sources, self.memory.select(rows)


class Conditioned:
    """``model`` writing from ``memory``: row b of every prefix belongs to row b of the memory.

    Everything a CausalLM has and that is not here is the model's own: ``lm_head``, ``parameters()`` ...

    ``kept`` is for several memories of one model, of which no weight changes meanwhile: what is laid out of
    them for the first is found there by the next.
    """

    def __init__(self, model: Any, memory: Memory, *, kept: dict[str, Any] | None = None) -> None:
        self.model = model
        self.memory = memory
        self.config = model.config
        self.kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def new_cache(self, batch: int, length: int) -> ConditionedCache:
        """An empty cache for a prefix of up to ``length`` tokens for each of the ``batch`` sources."""
        return ConditionedCache(self.model.new_cache(batch, length), self.memory)

    def hidden(self, tokens: Tensor, *, attend: None = None, cache: Any = None) -> Tensor:
        """tokens [B, T] -> [B, T, D]; ``cache`` is one of :meth:`new_cache`, or None."""
        if cache is None:
            return self.model.hidden(tokens, self.memory)
        return self.model.hidden(tokens, cache.memory, cache=cache.prefixes)

    def select(self, rows: Tensor) -> Conditioned:
        """The same model writing from these sources, in this order."""
        return Conditioned(self.model, self.memory.select(rows))

    def check(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Raise GenerationError unless there is one prefix per source, and all are of one length."""
        if len(prefixes) != len(self.memory.values):
            raise GenerationError(
                f"{len(prefixes)} prefixes for {len(self.memory.values)} sources; give one for each, and "
                "samples=n for several texts of each"
            )
        lengths = sorted(set(map(len, prefixes)))
        if len(lengths) > 1:
            raise GenerationError(
                f"prefixes of {lengths[0]} and of {lengths[-1]} tokens; those of one batch have one length: "
                "write to their sources in batches of their own"
            )

    def usual_new_tokens(self) -> list[int]:
        """How many tokens each source may become where nobody said: 3 times its length and 50."""
        B, S = self.memory.values.shape[:2]
        lengths = [S] * B if self.memory.attend is None else self.memory.attend.sum(dim=1).tolist()
        return [3 * length + 50 for length in lengths]
