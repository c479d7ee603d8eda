"""A row that is continued turn after turn: what the cache holds is not read again."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from typing import Any, Unpack

from wordloom.errors import GenerationError
from wordloom.generate.decoder import Begun
from wordloom.generate.engine import Engine, RowOptions, Step
from wordloom.generate.prompts import token_ids
from wordloom.generate.sampling import Sampling
from wordloom.generate.speculation import NewDrafter


class History:
    """The ids of one text and the cache of what a model has read of them.

    Each call of :meth:`continued` gives the whole text so far.  The model reads only what follows the longest
    beginning that the cache holds: a new turn, or what stands behind an edit.  A recurrent state cannot be
    truncated, so an edited text is read from the start.

    Attributes:
        ids: the ids that the cache holds.
        n_read: the number of ids of the last prompt that the model read.
    """

    def __init__(self, model: Any, *, fast: bool = True, speculate: NewDrafter | None = None) -> None:
        """``fast`` and ``speculate`` are those of :class:`~wordloom.generate.Engine`."""
        self.engine = Engine(model, fast=fast, speculate=speculate)
        self.ids: list[int] = []
        self.n_read = 0
        self._cache: Any = None
        # a weak reference, so that an iterator that the caller drops is closed at once
        self._open: weakref.ref[Generator[Step, None, None]] | None = None

    def continued(
        self, ids: Sequence[int], sampling: Sampling | None = None, **options: Unpack[RowOptions]
    ) -> Generator[Step, None, None]:
        """Yield the tokens that continue ``ids``; arguments and errors as in :func:`wordloom.generate.steps`.

        If the iterator is closed early, the tokens up to there stay in the cache.  The next call closes the
        iterator.

        Raises GenerationError for several samples.
        """
        if sampling is not None and sampling.samples > 1:
            raise GenerationError(f"a history has one row, not {sampling.samples}; ask for one sample")
        prompt = token_ids(ids, "the prompt")
        self._close()
        engine, window = self.engine, self.engine.decoder.window
        engine.evict(engine.live)  # the row of an iterator that was closed before its first token
        length = len(prompt) if window is None else min(len(prompt), window)
        begun = self._begun(prompt) if length == len(prompt) else None  # a window that slides is read again
        options.setdefault("first_row", 0)
        numbers = engine.admit([prompt], sampling, begun=begun, **options)
        self.n_read = length - (0 if begun is None else begun.length)
        self.ids, self._cache = [], None  # until the rows below have been read
        steps = self._steps(numbers)
        self._open = weakref.ref(steps)
        return steps

    def _close(self) -> None:
        """Close the last iterator if it is open, so that the cache gets its tokens."""
        steps = None if self._open is None else self._open()
        if steps is not None:
            steps.close()

    def _steps(self, numbers: list[int]) -> Generator[Step, None, None]:
        decoder = self.engine.decoder
        (row,) = decoder.rows
        decoder.released = None
        try:
            while self.engine.live:
                yield from self.engine.step()
        finally:
            cache = decoder.cache if decoder.released is None else decoder.released
            decoder.released = None
            self.engine.evict(numbers)
            if cache is not None:
                self._cache, self.ids = cache, row[: int(cache.lengths[0])]

    def forget(self) -> None:
        """Close the iterator and drop the cache; the next text is read from the start."""
        self._close()
        self.ids, self._cache = [], None

    def _begun(self, prompt: list[int]) -> Begun | None:
        """Return the cache with the longest beginning of ``prompt`` but its last id; None: it has none."""
        if self._cache is None:
            return None
        most = min(len(self.ids), len(prompt) - 1)
        length = next((i for i in range(most) if self.ids[i] != prompt[i]), most)
        if not length:
            return None
        try:
            self._cache.truncate(length)
        except GenerationError:  # a state, or a ring that has lost the tokens before
            return None
        self.ids = self.ids[:length]
        return Begun(self._cache, length)
