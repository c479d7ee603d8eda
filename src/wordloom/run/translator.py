"""A trained sequence-to-sequence model from its folder, and what one does with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError, GenerationError
from wordloom.generate import Conditioned, Hypothesis, beam_search
from wordloom.models import Memory, context_limit, translates
from wordloom.run.dtypes import choose_dtype
from wordloom.run.vocabularies import read_vocabularies
from wordloom.text import Tokenizer
from wordloom.training.precision import choose_device
from wordloom.weights import load_config, load_model

__all__ = ["Translation", "Translator", "load_translator"]

_POOL = 16  # batches of texts sorted by length together: little is padded, and little is held


class Translation(NamedTuple):
    """One text that a source became; ``score`` is its log-probability over its length."""

    text: str
    score: float


@dataclass(kw_only=True)
class Translator:
    """A :class:`wordloom.models.SequenceToSequence` and its tokenizers, from :func:`load_translator`.

    ``tokenizer`` is that of what is written; ``source_tokenizer`` of what is read, often the same object.
    ``source_eos_id`` ends sources and ``eos_id`` translations, which ``pad_id`` begins, as Marian has it.
    """

    model: Any
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    config: Any
    source_eos_id: int
    eos_id: int
    pad_id: int
    folder: Path | None = None

    @property
    def separate(self) -> bool:
        """Whether sources have a vocabulary of their own."""
        return self.source_tokenizer is not self.tokenizer

    def translate(
        self,
        texts: Iterable[str],
        *,
        beams: int = 5,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        n_best: int = 1,
        batch_size: int = 32,
        read_ahead: int | None = None,
    ) -> Iterator[list[Translation]]:
        """The ``n_best`` translations of each text, the best first, in the order of the texts.

        A text of nothing but white space becomes an empty one.  ``beams`` 1 is greedy.  ``read_ahead`` texts
        are taken at a time, and those of like length translated together; None: 16 batches.

        Raises GenerationError for a text of more tokens than the model takes, with its number.
        """
        if batch_size < 1:
            raise GenerationError(f"batch_size is a number of texts above 0, not {batch_size}")
        settings = {"beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens,
                    "n_best": n_best}  # fmt: skip
        waiting, done = iter(texts), 0
        while pool := list(islice(waiting, read_ahead or _POOL * batch_size)):
            yield from self._pool(pool, done, batch_size, settings)
            done += len(pool)

    def _pool(
        self, texts: Sequence[str], before: int, batch_size: int, settings: dict[str, Any]
    ) -> Iterator[list[Translation]]:
        found: list[list[Translation]] = [[Translation("", 0.0)] for _ in texts]
        real = [i for i, text in enumerate(texts) if text.strip()]
        numbers = [before + i + 1 for i in real]
        rows = dict(zip(real, self.source_rows([texts[i] for i in real], numbers), strict=True))
        order = sorted(real, key=lambda i: len(rows[i]))
        for start in range(0, len(order), batch_size):
            some = order[start : start + batch_size]
            for i, hypotheses in zip(some, self.search([rows[i] for i in some], **settings), strict=True):
                found[i] = [Translation(self._text(one), one.score) for one in hypotheses]
        yield from found

    def source_rows(self, texts: Sequence[str], numbers: Iterable[int] | None = None) -> list[list[int]]:
        """Token ids of each text and the end token; ``numbers`` name the texts in an error, from 1."""
        longest = context_limit(self.config)
        ids = self.source_tokenizer.encode_batch(texts, specials="text")
        rows = [[*map(int, some), self.source_eos_id] for some in ids]
        for number, row in zip(numbers or count(1), rows, strict=False):
            if longest is not None and len(row) > longest:
                raise GenerationError(
                    f"text {number} has {len(row)} tokens and the model takes {longest}; "
                    "divide it into sentences"
                )
        return rows

    @torch.no_grad()
    def read(self, rows: Sequence[Sequence[int]]) -> Memory:
        """What the encoder makes of sources, each as token ids that end in ``source_eos_id``."""
        device = next(self.model.parameters()).device
        S = max(map(len, rows))
        pad = self.source_tokenizer.pad_id or 0  # any that the model knows: nothing attends to it
        source = torch.tensor([[*row, *[pad] * (S - len(row))] for row in rows], device=device)  # [B, S]
        lengths = torch.tensor([len(row) for row in rows], device=device)
        attend = torch.arange(S, device=device) < lengths[:, None]
        return self.model.encode(source, attend=None if bool(attend.all()) else attend)

    def search(self, rows: Sequence[Sequence[int]], **settings: Any) -> list[list[Hypothesis]]:
        """Hypotheses for sources as :meth:`read` takes them; ``settings`` are beam search's."""
        return beam_search(
            Conditioned(self.model, self.read(rows)),
            [[self.pad_id]] * len(rows),
            eos_ids=[self.eos_id],
            forbidden_ids=[self.pad_id],
            vocab_size=self.tokenizer.vocab_size,
            **settings,
        )

    def _text(self, hypothesis: Hypothesis) -> str:
        ids = [token for token in hypothesis.ids if token != self.eos_id]
        return self.tokenizer.decode(ids).strip()


def load_translator(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> Translator:
    """The model in ``folder``, ours or a Marian one with a ``tokenizer.json``; ``dtype`` as :func:`load`.

    Raises CheckpointError for a folder that is no model of this kind, or lacks its tokenizer.
    """
    folder = Path(folder)
    if not translates(load_config(folder)):
        raise CheckpointError(
            f"{folder} holds no model that turns one text into another; train one with "
            'train.objective = "translation"'
        )
    model: Any = load_model(folder, dtype=choose_dtype(dtype), device=choose_device(device))
    found = read_vocabularies(folder, model.config)
    ids = (found.source.eos_id, found.target.eos_id, found.target.pad_id)
    source_eos_id, eos_id, pad_id = (number for number in ids if number is not None)  # none is missing
    return Translator(
        model=model.eval(),
        tokenizer=found.target,
        source_tokenizer=found.source,
        config=model.config,
        source_eos_id=source_eos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        folder=folder,
    )
