"""One word in several sentences: how much its vectors differ after each layer.

Source: Ethayarajh 2019, arXiv:1909.00512.

The vector of a word is that of its last token.  Before the first layer it is the token's embedding, which is
the same in all sentences: the cosine is 1.  All vectors of a layer share a large part, so cosines are given a
second time without it: the mean over all tokens of the texts is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wordloom.errors import GenerationError
from wordloom.inspect.figures import FONT, add_colour_bar, new_figure
from wordloom.inspect.layers.states import layer_name, layer_states, row_of
from wordloom.inspect.view import Table, View
from wordloom.nn.evaluating import evaluating, widened

_MOST_PANELS = 7
_LONGEST = 100  # characters of a text below the figure


@dataclass(frozen=True)
class WordInTexts(View):
    """Cosines [L + 1, N, N] between the vectors of a word in N texts, after each layer."""

    word: str
    texts: tuple[str, ...]
    raw: Tensor
    centred: Tensor

    @property
    def title(self) -> str:
        return f"The vectors of {self.word} in {len(self.texts)} texts"

    def as_dict(self) -> dict[str, Any]:
        found = {"raw": self.raw.tolist(), "centred": self.centred.tolist()}
        return {"word": self.word, "texts": self.texts, **found}

    def tables(self) -> list[Table]:
        N = len(self.texts)
        pairs = [(i, j) for i in range(N) for j in range(i + 1, N)]
        columns = ("after", *(f"{i + 1} and {j + 1}" for i, j in pairs))
        layers = range(len(self.raw))
        return [
            Table(
                f"{name}, of texts",
                columns,
                [(layer_name(x), *(f"{values[x, i, j]:.3f}" for i, j in pairs)) for x in layers],
            )
            for name, values in (("Cosine", self.raw), ("Cosine without the mean", self.centred))
        ]

    def notes(self) -> list[str]:
        return [f"text {i + 1}: {text}" for i, text in enumerate(self.texts)]

    def words(self) -> Sequence[str]:
        return [self.word, *self.texts]

    def figure(self) -> Any:
        """Return a matrix of cosines without the mean for each layer, or for seven of more layers."""
        N, last = len(self.texts), len(self.raw) - 1
        layers = sorted({round(share * last) for share in np.linspace(0, 1, _MOST_PANELS)})
        figure = new_figure((1.2 + len(layers) * (0.8 + 0.4 * N), 1.4 + 0.55 * N))
        panels = figure.subplots(1, len(layers), squeeze=False)[0]
        for panel, layer in zip(panels, layers, strict=True):
            image = panel.imshow(self.centred[layer].numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
            panel.set_title(layer_name(layer), fontsize=FONT)
            numbers = [str(i + 1) for i in range(N)]
            panel.set_xticks(range(N), numbers)
            panel.set_yticks(range(N), numbers)
            panel.tick_params(labelsize=FONT - 1, length=0)
        some = "" if len(layers) > last else f" (some of {last} layers)"
        title = f"cosines of {self.word}, without the mean{some}"
        figure.suptitle(title, fontsize=FONT, parse_math=False)
        figure.supxlabel("\n".join(map(_shortened, self.notes())), fontsize=FONT - 1, parse_math=False)
        add_colour_bar(panels, image, "cosine", FONT - 1)
        return figure


def word_in_texts(
    model: Any, rows: Sequence[Sequence[int]], places: Sequence[int], word: str, texts: Sequence[str]
) -> WordInTexts:
    """Return the cosines of a word between N texts, after each layer of a ``model`` with ``hidden``.

    ``rows`` are the ids of the texts, and ``places`` where in each the last token of the word stands.

    Raises GenerationError for fewer than two texts, for a place that does not exist, and for a text that is
    too long.
    """
    if len(rows) < 2:
        raise GenerationError(f"there is {len(rows)} text with {word!r}; give two or more to compare")
    vectors: list[list[Tensor]] = []  # by text, of L + 1 layers [D]
    means: list[Tensor] = []
    total = 0
    with evaluating(model):
        for ids, place in zip(rows, places, strict=True):
            if not 0 <= place < len(ids):
                raise GenerationError(f"place {place} does not exist; allowed: 0 to {len(ids) - 1}")
            row = row_of(model, ids)
            states = [widened(x[0]) for x in layer_states(model, row)]  # L + 1 of [T, D]
            states[0] = widened(model.token_embedding(row)[0])  # without positions
            vectors.append([x[place] for x in states])
            sums = [x.sum(0) for x in states]
            means = sums if not means else [a + b for a, b in zip(means, sums, strict=True)]
            total += len(ids)
    layers = [torch.stack(each) for each in zip(*vectors, strict=True)]  # L + 1 of [N, D]
    centred = [x - sums / total for x, sums in zip(layers, means, strict=True)]
    return WordInTexts(
        word=word,
        texts=tuple(texts),
        raw=torch.stack([_cosines(x) for x in layers]).cpu(),
        centred=torch.stack([_cosines(x) for x in centred]).cpu(),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _cosines(x: Tensor) -> Tensor:
    """x [N, D] -> [N, N]"""
    units = torch.nn.functional.normalize(x, dim=1)
    return (units @ units.T).clamp(-1, 1).float()
