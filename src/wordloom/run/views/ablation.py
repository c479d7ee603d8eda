"""Which heads and layers a model needs: the change of its bits per byte without each (Michel et al. 2019).

A head is removed by replacing its activations, the weighted mean of values that o_proj reads, by zero or by
their mean over the text.  The mean keeps what the head adds to every token alike.  A feed-forward layer is
removed by replacing the activations that down_proj reads.  The biases of o_proj and down_proj stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, EvaluationError, NonFiniteError, WordloomError
from wordloom.evaluate.perplexity import strided_windows
from wordloom.evaluate.reading import Reader, check_vocabulary
from wordloom.inspect.figures import FONT, add_colour_bar, new_figure
from wordloom.inspect.view import Table, View
from wordloom.models import context_limit
from wordloom.models.gpt import GPT
from wordloom.models.gpt2 import GPT2
from wordloom.models.llama import Llama
from wordloom.nn.evaluating import evaluating, widened
from wordloom.nn.head import head_loss

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.text import Specials, Tokenizer

Value = Literal["zero", "mean"]
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Ablation(View):
    """The change of bits per ``unit`` without each head [layers, H] and each feed-forward layer [layers]."""

    bits: float  # of the whole model
    unit: Literal["byte", "token"]
    heads: Tensor
    feed_forwards: Tensor
    value: Value
    tokens: int
    title: str = "What the model loses without each part"

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "heads": self.heads.tolist(), "feed_forwards": self.feed_forwards.tolist()}

    def tables(self) -> list[Table]:
        layers, H = self.heads.shape
        rows = [
            (
                f"layer {layer}",
                *(f"{self.heads[layer, head]:+.4f}" for head in range(H)),
                f"{self.feed_forwards[layer]:+.4f}",
            )
            for layer in range(layers)
        ]
        columns = ("without", *(f"head {head}" for head in range(H)), "feed-forward")
        return [Table(f"Change of bits per {self.unit}", columns, rows)]

    def notes(self) -> list[str]:
        what = "zero" if self.value == "zero" else "their mean over the text"
        return [
            f"{self.bits:.4f} bits per {self.unit} with all parts, over {self.tokens:,} tokens; the "
            f"activations of a removed part are {what}"
        ]

    def figure(self) -> Any:
        """Return a grid: layers up, the heads and the feed-forward layer across."""
        grid = torch.cat([self.heads, self.feed_forwards[:, None]], dim=1).numpy()
        layers, columns = grid.shape
        figure = new_figure((2.2 + 0.55 * columns, 1.5 + 0.36 * layers))
        panel = figure.subplots()
        most = float(np.abs(self.heads.numpy()).max()) or 1.0  # feed-forward layers are often beyond it
        image = panel.imshow(grid, origin="lower", cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        for (layer, column), value in np.ndenumerate(grid):
            colour = "white" if abs(value) > 0.6 * most else "#1a1a1a"
            panel.text(
                column, layer, f"{value:+.3f}", ha="center", va="center", color=colour, fontsize=FONT - 3
            )
        names = [*map(str, range(columns - 1)), "feed-\nforward"]
        panel.set_xticks(range(columns), names, fontsize=FONT - 1)
        panel.set_yticks(range(layers), [f"layer {layer}" for layer in range(layers)], fontsize=FONT - 1)
        panel.set_xlabel("head", fontsize=FONT)
        panel.tick_params(length=0)
        beyond = ", and beyond" if np.abs(grid).max() > most else ""
        add_colour_bar(panel, image, f"bits per {self.unit}{beyond}", FONT - 1)
        return figure


class _Text(NamedTuple):
    """Windows of a text, and the number of bytes that its predicted tokens stand for; None if undefined."""

    batches: list[list[Sequence[int]]]
    tokens: int
    bytes: int | None


def ablation(
    model: Any,
    tokenizer: Tokenizer,
    documents: Iterable[Document | str],
    *,
    value: Value = "zero",
    tokens: int = 10_000,
    window: int | None = None,
    specials: Specials = "refuse",
    progress: Callable[[int], None] | None = None,
) -> Ablation:
    """Return what a causal ``model`` with attention loses without each head and feed-forward layer.

    Args:
        documents: read until they have ``tokens`` tokens to predict.
        value: what replaces the activations of a part: zero, or their mean over the text.
        window: the number of tokens that the model reads at once; None: its max_seq_len.
        progress: called after each part.

    Raises:
        WordloomError: a model of another family.
        ConfigError: an unknown value, or a window that does not fit.
        EvaluationError: no token to predict, or a tokenizer of another model.
        NonFiniteError: probabilities that are not finite.
    """
    n_parts(model)  # raises for a model of another family
    if value not in ("zero", "mean"):
        raise ConfigError(f"unknown value {value!r}; allowed: zero, mean")
    limit = context_limit(model.config) or 512
    window = limit if window is None else window
    if not 1 <= window <= limit:
        raise ConfigError(f"window {window} does not fit the model; allowed: 1 to {limit}")
    check_vocabulary(model, tokenizer)
    text = _text(tokenizer, documents, tokens, window, specials)
    scale = 1 / (math.log(2) * (text.tokens if text.bytes is None else text.bytes))
    blocks: list[Any] = list(model.blocks)
    with evaluating(model):
        whole, means = _nats_and_means(model, text)
        if not math.isfinite(whole):
            raise NonFiniteError("the model gives no finite probability; its weights are damaged")
        changes = []
        for block in blocks:
            attention = block.attention
            parts: list[tuple[nn.Module, slice]] = [
                (attention.o_proj, slice(head * attention.head_dim, (head + 1) * attention.head_dim))
                for head in range(attention.n_heads)
            ]
            parts.append((block.feed_forward.down_proj, slice(None)))
            for module, columns in parts:
                mean = means[module][columns] if value == "mean" else 0.0
                with _replaced(module, columns, mean):
                    changes.append((_nats(model, text) - whole) * scale)
                if progress is not None:
                    progress(1)
    grid = torch.tensor(changes).view(len(blocks), -1)  # [layers, H + 1]
    return Ablation(
        bits=whole * scale,
        unit="token" if text.bytes is None else "byte",
        heads=grid[:, :-1],
        feed_forwards=grid[:, -1],
        value=value,
        tokens=text.tokens,
    )


def n_parts(model: Any) -> int:
    """Return how many parts :func:`ablation` removes in turn; raises WordloomError as it does."""
    if not isinstance(model, GPT | GPT2 | Llama):
        raise WordloomError(
            "the view 'ablate' is defined for gpt, gpt2 and llama models, not for type "
            f"{type(model).__name__}"
        )
    blocks: Any = model.blocks
    return sum(block.attention.n_heads + 1 for block in blocks)


def _text(
    tokenizer: Tokenizer, documents: Iterable[Document | str], tokens: int, window: int, specials: Specials
) -> _Text:
    reader = Reader(tokenizer, start="auto", end="auto", specials=specials)
    batches: list[list[Sequence[int]]] = []
    count, size, left = 0, 0, tokens
    for text in reader.texts(documents):
        ids = text.sequence[: left + 1]
        if text.token_bytes is not None:
            size += int(text.token_bytes[1 : len(ids)].sum())
        for part in strided_windows(len(ids) - 1, window=window, stride=window):
            ids_of_part = ids[part.begin : part.end + 1].tolist()
            if not batches or len(batches[-1]) * window >= _BATCH_TOKENS:
                batches.append([])
            batches[-1].append(ids_of_part)
        count += max(0, len(ids) - 1)
        left = tokens - count
        if left <= 0:
            break
    if not count:
        raise EvaluationError("there is no token to predict; give a text of at least two tokens")
    return _Text(batches, count, size if size and reader.byte_lengths is not None else None)


def _nats(model: Any, text: _Text) -> float:
    """Return the summed negative log-probability of the text."""
    device, total = next(model.parameters()).device, 0.0
    for batch in text.batches:
        T = max(len(ids) for ids in batch) - 1
        tokens = torch.zeros(len(batch), T, dtype=torch.int64)
        targets = torch.full((len(batch), T), -100)
        for row, ids in enumerate(batch):
            tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
        hidden = model.hidden(tokens.to(device)).flatten(0, 1)  # [B * T, D]
        total += float(head_loss(model.lm_head, hidden, targets.flatten().to(device)))
    return total


def _nats_and_means(model: Any, text: _Text) -> tuple[float, dict[nn.Module, Tensor]]:
    """Return the nats, and the mean input of each o_proj and down_proj over the tokens of the text."""
    sums: dict[nn.Module, Tensor] = {}
    lengths: list[int] = []

    def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = widened(args[0])  # [B, T, ..]
        own = torch.cat([row[:n] for row, n in zip(x, lengths, strict=True)]).sum(0)  # without padding
        sums[module] = own if module not in sums else sums[module] + own

    modules = [
        module for block in model.blocks for module in (block.attention.o_proj, block.feed_forward.down_proj)
    ]
    hooks = [module.register_forward_pre_hook(add) for module in modules]
    total = 0.0
    try:
        for batch in text.batches:
            lengths[:] = [len(ids) - 1 for ids in batch]
            total += _nats(model, text._replace(batches=[batch]))
    finally:
        for hook in hooks:
            hook.remove()
    return total, {module: x / text.tokens for module, x in sums.items()}


@contextmanager
def _replaced(module: nn.Module, columns: slice, value: Tensor | float) -> Iterator[None]:
    """Give ``module`` inputs [.., C] whose ``columns`` are ``value``."""

    def replace(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0].clone()
        x[..., columns] = value if isinstance(value, float) else value.to(x)
        return (x,)

    hook = module.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()
