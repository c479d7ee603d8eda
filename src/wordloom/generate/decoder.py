"""The decoding loop of the engine and of beam search: rows that join, step and leave.

    decoder = Decoder(model)
    decoder.admit([[1, 2, 3], [4]], new_tokens=20)      # two rows wait for their first pass
    logits = decoder.step()                             # [2, V]
    decoder.append(logits.argmax(dim=-1).tolist())
    decoder.admit([[5, 6]], new_tokens=20)              # a third row joins
    logits = decoder.step()                             # [3, V], new rows last
    decoder.append(logits.argmax(dim=-1).tolist())
    decoder.evict([0])                                  # the first row leaves

Each row computes what it would compute alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.fast import Accelerated, accelerate
from wordloom.kernels.threads import one_thread
from wordloom.models import generation_limit
from wordloom.nn.cache import SPARE_PLACES, KeyValueCache
from wordloom.nn.evaluating import evaluating
from wordloom.nn.memory import Memory

PREFILL_TOKENS = 4096  # longer prompts pass in pieces, which bounds activations and masks
MOST_ALLOCATED = 4096  # new tokens that a cache is allocated for; it grows if a row needs more


class _Admission(NamedTuple):
    """A group of rows that are admitted, and first read, together."""

    reader: Any  # the model, or the model with these rows' sources
    new_tokens: int
    begun: Begun | None = None


class Begun(NamedTuple):
    """A cache of one row, and how many of its tokens a prompt begins with."""

    cache: Any
    length: int


class Decoder:
    """Rows of ids that one model continues together; they are admitted and evicted between steps.

    Attributes:
        rows: The ids of each live row, the prompt included.  Rows that are admitted later come last.
        device: The device of the model.
        released: The cache that the last rows left when none stayed, for a row that goes on later.
    """

    def __init__(self, model: Any, *, use_cache: bool = True, fast: bool = True) -> None:
        """``model`` is any :class:`wordloom.models.CausalLM`, or a SequenceToSequence with its sources as
        :class:`wordloom.generate.Conditioned`.

        ``use_cache=False`` computes all tokens of a row in every step, and ``fast=False`` runs the model's
        modules where a compiled program could (:mod:`wordloom.generate.fast`).
        """
        if type(model) is Conditioned and model.kept is None:
            model = Conditioned(model.model, model.memory, kept={})  # later sources use the same programs
        self.model = accelerate(model) if fast and use_cache else model
        self.rows: list[list[int]] = []
        self.window = generation_limit(model.config)
        self.device = next(model.parameters()).device
        self.use_cache = use_cache
        self.cache: Any = None
        self.released: Any = None
        self._origins: list[tuple[_Admission, int]] = []  # of each row, with the number of its prompt
        self._unread = 0  # rows at the end that are not in the cache

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        new_tokens: int,
        copies: int = 1,
        memory: Memory | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Add ``copies`` rows for each prompt after the live rows; the next step reads the prompts.

        A prompt is read once for all its copies.  ``new_tokens`` is the number of new tokens that the cache
        is allocated for, within ``max_seq_len``; it grows if a row needs more.  ``memory`` holds a source for
        each prompt.  None: the memory of the :class:`~wordloom.generate.Conditioned` that the decoder was
        created with.  ``begun`` has the beginning of the only prompt, which is not read again.
        """
        reader = self.model if memory is None else self.reading(memory)
        admission = _Admission(reader, new_tokens, begun)
        for number, prompt in enumerate(prompts):
            self.rows += [list(prompt) for _ in range(copies)]
            self._origins += [(admission, number)] * copies
        self._unread += len(prompts) * copies

    def reading(self, memory: Memory) -> Conditioned:
        """Return the model with the sources in ``memory``.

        Raises GenerationError for a model that reads no sources.
        """
        if not isinstance(self.model, Conditioned):
            raise GenerationError("a memory of sources needs a model that reads sources (Conditioned)")
        return self.model.with_memory(memory)

    def append(self, ids: Sequence[int], places: Sequence[int] | None = None) -> None:
        """Append one id to each live row, or to those at these places."""
        rows = self.rows if places is None else [self.rows[place] for place in places]
        for row, token in zip(rows, ids, strict=True):
            row.append(token)

    def evict(self, places: Collection[int]) -> None:
        """Remove the rows at these places; the others keep their order."""
        evicted = set(places)
        self.select([place for place in range(len(self.rows)) if place not in evicted])

    def select(self, places: Sequence[int]) -> None:
        """Keep the rows at these places in this order; a row may be repeated.

        Rows that no step has read yet must stay after the others.
        """
        cached = places
        if self._unread:
            read = len(self.rows) - self._unread
            cached = [place for place in places if place < read]
        self._unread = len(places) - len(cached)
        self.rows = [self.rows[place].copy() for place in places]
        self._origins = [self._origins[place] for place in places]
        if self.cache is not None and not cached:
            self.released, self.cache = self.cache, None
        elif self.cache is not None:
            with torch.inference_mode():
                self.cache.select(_ids(cached, self.device))

    def step(self) -> Tensor:
        """Return the logits [B, V] float32 of each live row's next token."""
        with self._evaluating(), torch.inference_mode():
            hidden, copies = self._hidden()
            logits = self.model.lm_head(hidden).float()
            return logits if copies is None else logits[copies]

    def most_drafts(self) -> int:
        """Return how many tokens after its last one :meth:`step_with_drafts` can take for each row.

        0 where a step computes logits with other bits than a step with drafts: without a compiled program,
        and where rows have not been read.
        """
        fits = isinstance(self.model, Accelerated) and isinstance(self.cache, KeyValueCache)
        if not fits or self._unread or self.cache.has_states:
            return 0
        room = SPARE_PLACES if self.window is None else self.window - max(map(len, self.rows))
        return max(0, min(self.model.most_alike // len(self.rows) - 1, SPARE_PLACES, room))

    def step_with_drafts(self, drafts: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits [B, K + 1, V] float32 after each row and after each token of its draft.

        Drafts have at most K tokens, and the logits after a shorter one are of no use.  Ids that are drawn
        are appended; then :meth:`forget_drafts` has to be called.
        """
        K = max(map(len, drafts))
        tokens = np.zeros((len(drafts), K + 1), dtype=np.int64)
        real = np.zeros((len(drafts), K + 1), dtype=bool)
        for place, (row, draft) in enumerate(zip(self.rows, drafts, strict=True)):
            tokens[place, : len(draft) + 1] = [row[-1], *draft]
            real[place, : len(draft) + 1] = True
        attend = None if real.all() else torch.from_numpy(real)
        with self._evaluating(), torch.inference_mode():
            hidden = self.model.hidden(torch.from_numpy(tokens), attend=attend, cache=self.cache)
            logits: Tensor = self.model.lm_head(hidden).float()
            return logits

    def forget_drafts(self) -> None:
        """Keep what the cache has of each row but its last id, which the next step reads."""
        self.cache.truncate(torch.tensor([len(row) - 1 for row in self.rows]))

    def hidden(self) -> Tensor:
        """Return the vectors [B, D] from which the head computes each live row's next token.

        This passes the last token of every row through the model, and the whole prompt of new rows.  The
        next call may overwrite the result.
        """
        with self._evaluating(), torch.inference_mode():
            hidden, copies = self._hidden()
            return hidden if copies is None else hidden[copies]

    def _evaluating(self) -> AbstractContextManager[None]:
        # visiting all modules takes a few percent of a step of a small model
        return evaluating(self.model) if self.model.training else nullcontext()

    def _hidden(self) -> tuple[Tensor, Tensor | None]:
        """Return vectors [N, D], and of each live row the number of its vector; None: N rows in order."""
        if not self.use_cache or (self.window is not None and max(map(len, self.rows)) > self.window):
            # a cached key was computed with tokens that have left the window: only a new pass is exact
            self.cache, self._unread = None, len(self.rows)
            return torch.cat([self._recompute(*part) for part in self._unread_parts()]), None
        if not self._unread:
            return self._next(), None
        parts = [] if self.cache is None else [self._next().clone()]
        for part in self._unread_parts():
            hidden, copies = self._prefill(*part)
            if len(self.rows) == len(part[1]):
                self._unread = 0
                return hidden, copies
            parts.append(hidden.clone() if copies is None else hidden[copies])
        self._unread = 0
        return torch.cat(parts), None

    def between_steps(self) -> AbstractContextManager[None]:
        """Return a context for operations on logits between two steps.

        PyTorch's threads would compete with those of the programs for some milliseconds.
        """
        return one_thread() if isinstance(self.model, Accelerated) else nullcontext()

    def _unread_parts(self) -> list[tuple[_Admission, list[int]]]:
        """Return the unread rows in groups that were admitted together, with the places of the rows."""
        parts: list[tuple[_Admission, list[int]]] = []
        for place in range(len(self.rows) - self._unread, len(self.rows)):
            admission, _ = self._origins[place]
            if not parts or parts[-1][0] is not admission:
                parts.append((admission, []))
            parts[-1][1].append(place)
        return parts

    def _reader(self, admission: _Admission, prompts: Sequence[int]) -> Any:
        """Return the model as it reads the prompts of these numbers."""
        if not isinstance(admission.reader, Conditioned):
            return admission.reader
        return admission.reader.select(torch.tensor(prompts, device=self.device))

    def _next(self) -> Tensor:
        """Pass the last token of every cached row."""
        read = len(self.rows) - self._unread
        tokens = _ids([row[-1] for row in self.rows[:read]], self.device)  # [B]
        return self.model.hidden(tokens[:, None], cache=self.cache)[:, -1]

    def _recompute(self, admission: _Admission, places: list[int]) -> Tensor:
        rows = [self.rows[place][-self.window :] if self.window else self.rows[place] for place in places]
        reader = self._reader(admission, [self._origins[place][1] for place in places])
        return prefill(reader, rows, device=self.device)

    def _prefill(self, admission: _Admission, places: list[int]) -> tuple[Tensor, Tensor | None]:
        """Pass the prompts of new rows, equal ones once, and join their cache to that of the rows before.

        Returns the prompts' vectors, and of each row the number of its prompt; None: one row of each prompt.
        """
        prompts: dict[tuple[int, tuple[int, ...]], int] = {}
        texts = [(self._origins[place][1], tuple(self.rows[place])) for place in places]
        copied = [prompts.setdefault(text, len(prompts)) for text in texts]  # of each row, its prompt
        rows = [ids for _, ids in prompts]
        reader, length = self._reader(admission, [number for number, _ in prompts]), max(map(len, rows))
        length += min(admission.new_tokens, MOST_ALLOCATED)
        if self.window is not None:  # a row past the window is computed without a cache
            length = min(length, self.window)
        if admission.begun is not None:
            cache = admission.begun.cache
            cache.truncate(admission.begun.length)
            rows = [rows[0][admission.begun.length :]]
        elif self.cache is None or isinstance(reader, Conditioned):
            cache = reader.new_cache(len(rows), length)
        else:
            cache = self.cache.empty(len(rows), length)
        hidden = prefill(reader, rows, device=self.device, cache=cache)
        copies = torch.tensor(copied, device=self.device) if len(copied) > len(prompts) else None
        if copies is not None:
            cache.select(copies)
        if self.cache is None:
            self.cache = cache
        else:
            self.cache.join(cache)
        return hidden, copies


def _ids(values: Sequence[int], device: torch.device) -> Tensor:
    """Return whole numbers as a tensor; NumPy reads a list in half of torch.tensor's time."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)


def next_logits(
    model: Any, rows: Sequence[Sequence[int]], *, device: torch.device, cache: Any = None
) -> Tensor:
    """Return the logits [B, V] of the token after each row of ids; see :func:`prefill`."""
    return model.lm_head(prefill(model, rows, device=device, cache=cache))


def prefill(model: Any, rows: Sequence[Sequence[int]], *, device: torch.device, cache: Any = None) -> Tensor:
    """Pass rows of ids and return the vectors [B, D] from which the head computes their next tokens.

    Shorter rows are padded on the right.  With a ``cache``, long rows pass in pieces.
    """
    lengths = [len(row) for row in rows]
    T = max(lengths)
    tokens = torch.tensor([[*row, *[0] * (T - len(row))] for row in rows], device=device)  # [B, T]
    attend: Tensor | None = None
    if min(lengths) < T:
        attend = torch.arange(T, device=device) < torch.tensor(lengths, device=device)[:, None]
    piece = T if cache is None else max(1, PREFILL_TOKENS // len(rows))
    last: list[Tensor] = [torch.empty(0)] * len(rows)
    for start in range(0, T, piece):
        part = slice(start, start + piece)
        real = None if attend is None else attend[:, part]
        hidden = model.hidden(tokens[:, part], attend=real, cache=cache)  # [B, piece, D]
        if attend is None:
            continue
        for row, length in enumerate(lengths):
            if start < length <= start + piece:
                last[row] = hidden[row, length - 1 - start].clone()
    return hidden[:, -1] if attend is None else torch.stack(last)
