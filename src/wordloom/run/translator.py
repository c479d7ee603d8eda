"""A trained sequence-to-sequence model from its folder, and what one does with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError, GenerationError
from wordloom.generate import Conditioned, Hypothesis, beam_search
from wordloom.models import context_limit, translates
from wordloom.run.dtypes import choose_dtype
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
    """A :class:`wordloom.models.SequenceToSequence` and its tokenizer, as :func:`load_translator` gives them.

    ``eos_id`` ends sources and translations, ``pad_id`` begins translations, as Marian has it.
    """

    model: Any
    tokenizer: Tokenizer
    config: Any
    eos_id: int
    pad_id: int
    folder: Path | None = None

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
        rows = dict(zip(real, self._sources([texts[i] for i in real], real, before), strict=True))
        order = sorted(real, key=lambda i: len(rows[i]))
        for start in range(0, len(order), batch_size):
            some = order[start : start + batch_size]
            for i, hypotheses in zip(some, self._search([rows[i] for i in some], settings), strict=True):
                found[i] = [Translation(self._text(one), one.score) for one in hypotheses]
        yield from found

    def _sources(self, texts: Sequence[str], numbers: Sequence[int], before: int) -> list[list[int]]:
        """Token ids of each text and the end token."""
        longest = context_limit(self.config)
        rows = [[*map(int, ids), self.eos_id] for ids in self.tokenizer.encode_batch(texts, specials="text")]
        for number, row in zip(numbers, rows, strict=True):
            if longest is not None and len(row) > longest:
                raise GenerationError(
                    f"text {before + number + 1} has {len(row)} tokens and the model takes {longest}; "
                    "divide it into sentences"
                )
        return rows

    @torch.no_grad()
    def _search(self, rows: list[list[int]], settings: dict[str, Any]) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        S = max(map(len, rows))
        pad = self.pad_id
        source = torch.tensor([row + [pad] * (S - len(row)) for row in rows], device=device)  # [B, S]
        lengths = torch.tensor([len(row) for row in rows], device=device)
        attend = torch.arange(S, device=device) < lengths[:, None]
        memory = self.model.encode(source, attend=None if bool(attend.all()) else attend)
        return beam_search(
            Conditioned(self.model, memory),
            [[pad]] * len(rows),
            eos_ids=[self.eos_id],
            forbidden_ids=[pad],
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
    if not (folder / "tokenizer.json").exists():
        raise CheckpointError(f"{folder} has no tokenizer, which text needs; put its tokenizer.json there")
    tokenizer = Tokenizer.from_pretrained(folder)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
    if tokenizer.eos_id is None or tokenizer.pad_id is None:
        raise CheckpointError(f"{folder}: its tokenizer lacks an eos or pad token, so no text would end")
    return Translator(
        model=model.eval(),
        tokenizer=tokenizer,
        config=model.config,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        folder=folder,
    )
