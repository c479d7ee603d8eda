"""The logit lens: the prediction that the head would make after each layer (nostalgebraist 2020).

The logits of layer l are lm_head(final_norm(x_l)).  Those of the last layer are the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.errors import ConfigError, EvaluationError, NonFiniteError
from wordloom.inspect.figures import FAINT, FONT, add_colour_bar, check_tokens, hide_frame, new_figure
from wordloom.inspect.layers.states import Readout, layer_name, layer_states, readout, row_of
from wordloom.inspect.layers.windows import batches_of, padded
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import Table, View
from wordloom.inspect.view.pages import data_as_html, resource
from wordloom.nn.evaluating import evaluating, widened
from wordloom.nn.fused import token_scores

CHUNK_ELEMENTS = 1 << 22  # of logits computed at once
_NOT_FINITE = "the model gives no finite probability; its weights are damaged"


@dataclass(frozen=True)
class Lens(View):
    """The prediction after each layer, for each token of a text.

    ``nats`` and ``ranks`` [L + 1, T] are those of the target: its negative log-probability, and its place
    among all tokens, 1 for the most probable.  ``likeliest`` holds for each layer and token the k most
    probable tokens with their probabilities.
    """

    tokens: tuple[str, ...]  # that the model reads
    targets: tuple[str, ...]  # that it should predict at each
    nats: Tensor
    ranks: Tensor
    likeliest: tuple[tuple[tuple[tuple[str, float], ...], ...], ...]  # [L + 1, T, k]
    is_open: bool = False  # the text ends, and the last target is the model's own prediction
    title: str = "Predictions after each layer"

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "targets": self.targets,
            "nats": self.nats.tolist(),
            "ranks": self.ranks.tolist(),
            "likeliest": self.likeliest,
            "is_open": self.is_open,
        }

    def tables(self) -> list[Table]:
        """Return the most probable token after each layer; the layers are columns, the tokens rows."""
        layers = range(len(self.nats))
        rows = [
            (
                visible(token),
                *(
                    f"{visible(self.likeliest[layer][t][0][0])} {self.likeliest[layer][t][0][1]:.2f}"
                    for layer in layers
                ),
                visible(target),
                f"{int(self.ranks[-1, t]):,}",
            )
            for t, (token, target) in enumerate(zip(self.tokens, self.targets, strict=True))
        ]
        columns = ("token", *map(layer_name, layers), "target", "its rank")
        return [Table("The most probable next token after each layer", columns, rows)]

    def notes(self) -> Sequence[str]:
        return ("the last target is the model's own prediction, because the text ends",) * self.is_open

    def words(self) -> Sequence[str]:
        best = [cell[0][0] for row in self.likeliest for cell in row]
        return [visible(token) for token in (*self.tokens, *self.targets, *best)]

    def figure(self) -> Any:
        """Return a grid: layers up, tokens across, each cell with its most probable token."""
        layers, T = self.nats.shape
        check_tokens(T)
        figure = new_figure((1.6 + 0.62 * T, 1.4 + 0.3 * layers))
        panel = figure.subplots()
        best = np.array([[cell[0][1] for cell in row] for row in self.likeliest])
        image = panel.imshow(best, origin="lower", aspect="auto", cmap="Blues", vmin=0, vmax=1)
        for (layer, t), share in np.ndenumerate(best):
            word, colour = self.likeliest[layer][t][0][0], "white" if share > 0.6 else "#1a1a1a"
            right = word == self.targets[t] and not (self.is_open and t == T - 1)
            panel.text(
                t, layer, visible(word)[:9], ha="center", va="center", color=colour, fontsize=FONT - 2,
                fontweight="bold" if right else "normal", parse_math=False,
            )  # fmt: skip
        names = {"fontsize": FONT - 1, "parse_math": False}
        panel.set_yticks(range(layers), [layer_name(layer) for layer in range(layers)], **names)
        panel.set_xticks(
            range(T),
            list(map(visible, self.tokens)),
            rotation=45,
            ha="right",
            rotation_mode="anchor",
            **names,
        )
        panel.tick_params(length=0)
        panel.set_xlabel("token read; bold: the cell is the true next token", fontsize=FONT, color=FAINT)
        add_colour_bar(panel, image, "probability", FONT - 1)
        return figure

    def body(self) -> str:
        data = {**self.as_dict(), "layers": [layer_name(layer) for layer in range(len(self.nats))]}
        return data_as_html("lens", data) + '<div id="view"></div>'

    def script(self) -> str:
        return resource("tokens.js") + resource("lens.js")


def lens(
    model: Any,
    ids: Sequence[int],
    name: Callable[[int], str] = str,
    *,
    targets: Sequence[int] | None = None,
    top_k: int = 5,
) -> Lens:
    """Return the predictions after each layer of a causal ``model`` that reads ``ids``.

    ``targets`` are the tokens to predict, one for each of ``ids`` (default: the next token, and for the last
    one the model's own prediction).  ``name`` returns the text of a token id.

    Raises:
        WordloomError: a family for which the lens is undefined.
        GenerationError: no ids, or more than max_seq_len.
        ConfigError: a ``top_k`` out of range.
        NonFiniteError: the logits are not finite.
    """
    logits_of = readout(model, "lens")
    if not 1 <= top_k <= model.config.vocab_size:
        raise ConfigError(f"top_k is {top_k}; allowed: 1 to {model.config.vocab_size}, the vocabulary")
    row = row_of(model, ids)
    with evaluating(model):
        states = layer_states(model, row)  # L + 1 of [1, T, D]
        is_open = targets is None
        if targets is None:
            last = int(logits_of(states[-1][0, -1]).argmax())
            targets = [*ids[1:], last]
        goal = torch.tensor(list(targets), device=row.device)
        layers = [_predictions(logits_of(x[0]).float(), goal, top_k) for x in states]
    return Lens(
        tokens=tuple(map(name, ids)),
        targets=tuple(map(name, targets)),
        nats=torch.stack([nats for nats, _, _ in layers]).cpu(),
        ranks=torch.stack([ranks for _, ranks, _ in layers]).cpu(),
        likeliest=tuple(
            tuple(tuple((name(i), p) for i, p in cell) for cell in cells) for _, _, cells in layers
        ),
        is_open=is_open,
    )


def _predictions(
    logits: Tensor, targets: Tensor, top_k: int
) -> tuple[Tensor, Tensor, list[list[tuple[int, float]]]]:
    """Return nats [T] and ranks [T] of ``targets``, and the top k of each row of ``logits`` [T, V]."""
    nats, ranks, _ = token_scores(logits, targets, targets)
    if not nats.isfinite().all():
        raise NonFiniteError(_NOT_FINITE)
    values, places = logits.softmax(-1).topk(top_k)
    pairs = zip(places.tolist(), values.tolist(), strict=True)
    return nats, ranks, [list(zip(ids, shares, strict=True)) for ids, shares in pairs]


@dataclass(frozen=True)
class LensSummary(View):
    """How well the head predicts the next token from each layer, over many tokens.

    ``bits``, ``median_rank``, ``best`` and ``agrees`` [L + 1] are the mean of the target's negative log2
    probability, its median rank, the share of tokens where it is the most probable one, and the share where
    the most probable token is that of the last layer.
    """

    tokens: int
    bits: NDArray[np.float64]
    median_rank: NDArray[np.float64]
    best: NDArray[np.float64]
    agrees: NDArray[np.float64]
    title: str = "How well each layer predicts the next token"

    def as_dict(self) -> dict[str, Any]:
        names = ("bits", "median_rank", "best", "agrees")
        return {"tokens": self.tokens, **{name: getattr(self, name).tolist() for name in names}}

    def tables(self) -> list[Table]:
        rows = [
            (
                layer_name(layer),
                f"{self.bits[layer]:.3f}",
                f"{self.median_rank[layer]:,.0f}",
                f"{self.best[layer]:.1%}",
                f"{self.agrees[layer]:.1%}",
            )
            for layer in range(len(self.bits))
        ]
        columns = ("after", "bits per token", "median rank", "target is first", "as the last layer")
        return [Table(f"Predictions after each layer, {self.tokens:,} tokens", columns, rows)]

    def figure(self) -> Any:
        figure = new_figure((7.2, 3.4))
        left, right = figure.subplots(1, 2)
        layers = range(len(self.bits))
        left.plot(layers, self.bits, marker="o")
        left.set_ylabel("bits per token")
        right.plot(layers, 100 * self.best, marker="o", label="target is first")
        right.plot(layers, 100 * self.agrees, marker="s", label="as the last layer")
        right.set_ylabel("tokens, %")
        right.set_ylim(0, 100)
        right.legend(frameon=False, fontsize=FONT - 1)
        for panel in (left, right):
            panel.set_xlabel("after layer; −1: the embedding")
            panel.set_xticks(layers, [str(layer - 1) for layer in layers])
            panel.grid(alpha=0.25)
            hide_frame(panel)
        return figure


def lens_summary(
    model: Any,
    windows: Iterable[Sequence[int]],
    *,
    progress: Callable[[int], None] | None = None,
) -> LensSummary:
    """Return how well each layer of a causal ``model`` predicts the tokens of ``windows``.

    Each window is a list of ids; its first token has no prediction.  Windows of any length are taken from the
    iterable as they are needed.  Memory holds a batch of them, and counts of ranks.  ``progress`` is called
    with the number of tokens of each batch.

    Raises WordloomError for a family for which the lens is undefined, EvaluationError for no token to
    predict.
    """
    logits_of = readout(model, "lens")
    totals: _Totals | None = None
    device = next(model.parameters()).device
    for batch in batches_of(windows):
        with evaluating(model):
            tokens, real, targets = (x.to(device) for x in padded(batch))
            states = [x[real] for x in layer_states(model, tokens)]  # L + 1 of [N, D]
            totals = _Totals(len(states), model.config.vocab_size) if totals is None else totals
            totals.add(states, targets, logits_of)
        if progress is not None:
            progress(len(targets))
    if totals is None or not totals.tokens:
        raise EvaluationError("there is no token to predict; give a text of at least two tokens")
    return totals.summary()


class _Totals:
    """Sums over tokens, by layer."""

    def __init__(self, layers: int, vocab_size: int) -> None:
        self.tokens = 0
        self.nats = np.zeros(layers)
        self.agrees = np.zeros(layers)
        self.ranks = np.zeros((layers, vocab_size + 1), dtype=np.int64)  # how often each rank occurred

    def add(self, states: Sequence[Tensor], targets: Tensor, logits_of: Readout) -> None:
        rows = max(1, CHUNK_ELEMENTS // (self.ranks.shape[1] - 1))
        for start in range(0, len(targets), rows):
            goal = targets[start : start + rows]
            final = None
            for layer in reversed(range(len(states))):
                logits = logits_of(states[layer][start : start + rows]).float()  # [rows, V]
                if final is None:
                    final = logits.argmax(1)  # [rows]
                nats, ranks, agrees = token_scores(logits, goal, final)
                if not nats.isfinite().all():
                    raise NonFiniteError(_NOT_FINITE)
                self.nats[layer] += float(widened(nats).sum())
                self.agrees[layer] += int(agrees.sum())
                self.ranks[layer] += np.bincount(ranks.cpu().numpy(), minlength=self.ranks.shape[1])
        self.tokens += len(targets)

    def summary(self) -> LensSummary:
        reached = self.ranks.cumsum(axis=1)
        lower = np.argmax(reached >= (self.tokens + 1) // 2, axis=1)  # the two middle ranks
        upper = np.argmax(reached >= self.tokens // 2 + 1, axis=1)
        return LensSummary(
            tokens=self.tokens,
            bits=self.nats / self.tokens / math.log(2),
            median_rank=(lower + upper) / 2,
            best=self.ranks[:, 1] / self.tokens,
            agrees=self.agrees / self.tokens,
        )
