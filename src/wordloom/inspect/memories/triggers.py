"""The contexts that activate each neuron most, found in one pass over a text of any length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from wordloom.errors import CheckpointError, ConfigError, EvaluationError, WordloomError
from wordloom.files import whole_file
from wordloom.inspect.layers.windows import batches_of, padded
from wordloom.models.gpt import GPT
from wordloom.models.gpt2 import GPT2
from wordloom.models.llama import Llama
from wordloom.nn.evaluating import evaluating

SAVE_TOKENS = 200_000  # between two saves
NONE = -1  # where there is no token, or no window


class Triggers(NamedTuple):
    """The k contexts with the largest activations of each of F neurons in each layer, largest first.

    Attributes:
        values: ``[layers, F, k]`` float32 activations; -inf where there are fewer than k contexts.
        windows: ``[layers, F, k]`` the number of the window of the context.
        positions: ``[layers, F, k]`` the position of its last token in the window.
        contexts: ``[layers, F, k, C]`` the last C tokens up to there; NONE before the beginning.
        followers: ``[layers, F, k]`` the token that follows.
        tokens: how many tokens were read.
        read: how many windows were read.
    """

    values: Tensor
    windows: Tensor
    positions: Tensor
    contexts: Tensor
    followers: Tensor
    tokens: int
    read: int

    @classmethod
    def empty(cls, layers: int, F: int, k: int, C: int) -> Triggers:
        def filled(value: float, dtype: torch.dtype, *more: int) -> Tensor:
            return torch.full((layers, F, k, *more), value, dtype=dtype)

        return cls(
            values=filled(-torch.inf, torch.float32),
            windows=filled(NONE, torch.int64),
            positions=filled(NONE, torch.int32),
            contexts=filled(NONE, torch.int32, C),
            followers=filled(NONE, torch.int32),
            tokens=0,
            read=0,
        )

    def save(self, path: Path, made_with: dict[str, Any]) -> None:
        """Write a file from which :meth:`load` reads; it replaces an earlier one at once."""
        counts = {"tokens": self.tokens, "read": self.read, "made_with": made_with}
        tensors = {name: value for name, value in self._asdict().items() if isinstance(value, Tensor)}
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(save_tensors(tensors, {"triggers": json.dumps(counts)}))

    @classmethod
    def load(cls, path: Path) -> tuple[Triggers, dict[str, Any]]:
        """Return what :meth:`save` wrote.  Raises CheckpointError for a damaged file."""
        data = path.read_bytes()
        try:
            tensors = load_tensors(data)
            size = int.from_bytes(data[:8], "little")
            counts = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["triggers"])
            found = cls(**tensors, tokens=counts["tokens"], read=counts["read"])
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"'{path}' holds no contexts of neurons ({error}); name another file"
            ) from None
        return found, counts["made_with"]


def find_triggers(
    model: Any,
    windows: Iterable[Sequence[int]],
    *,
    top_k: int = 25,
    context: int = 16,
    store: Path | None = None,
    weights: str = "",
    progress: Callable[[int], None] | None = None,
) -> Triggers:
    """Return the contexts that activate the neurons of a causal ``model`` most.

    Args:
        windows: lists of ids, of which the model reads all but the last; memory holds a batch of them.
        top_k: how many contexts of each neuron to keep.
        context: how many tokens of each context to keep.
        store: a file that is written every 200,000 tokens and at the end.  If it exists, its windows are
            skipped, and the result is the same as that of one run.
        weights: the :func:`fingerprint` of the model, which a stored file must have.
        progress: called with the number of tokens of each batch.

    Raises:
        WordloomError: a model of another family.
        ConfigError: ``top_k`` or ``context`` below 1.
        CheckpointError: ``store`` is damaged, or of another model, text or setting.
        EvaluationError: no tokens.
    """
    feeds = feed_forwards(model)
    if top_k < 1 or context < 1:
        raise ConfigError(f"top_k and context must be 1 or more, not {top_k} and {context}")
    found = Triggers.empty(len(feeds), feeds[0].down_proj.in_features, top_k, context)
    stream = (window for window in windows if len(window) > 1)
    text = hashlib.sha256()  # of the windows that were read
    settings = {"weights": weights, "top_k": top_k, "context": context}
    if store is not None and store.exists():
        found, made_with = Triggers.load(store)
        _hash(text, islice(stream, found.read))
        if made_with != {**settings, "text": text.hexdigest()}:
            raise CheckpointError(
                f"'{store}' holds the contexts of another model, text or setting; choose another file"
            )
        if progress is not None:
            progress(found.tokens)
    saved = found.tokens
    with evaluating(model), _activations(feeds) as activations:
        for batch in batches_of(stream):
            tokens, real, followers = padded(batch)
            model.hidden(tokens.to(next(model.parameters()).device))
            new = [m[real.to(m.device)].float().cpu() for m in activations]  # [N, F] of each layer
            found = _merged(found, new, tokens, real, followers)
            _hash(text, batch)
            if progress is not None:
                progress(len(followers))
            if store is not None and found.tokens - saved >= SAVE_TOKENS:
                found.save(store, {**settings, "text": text.hexdigest()})
                saved = found.tokens
    if not found.tokens:
        raise EvaluationError("there is no token to read; give a text that is not empty")
    if store is not None and found.tokens > saved:
        found.save(store, {**settings, "text": text.hexdigest()})
    return found


def fingerprint(model: nn.Module) -> str:
    """Return 16 hex digits of SHA-256 over the names, dtypes, shapes and bits of the weights of ``model``."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _hash(text: Any, windows: Iterable[Sequence[int]]) -> None:
    """Add windows to a digest of the text."""
    for window in windows:
        text.update(len(window).to_bytes(8, "little") + np.asarray(window, dtype="<i4").tobytes())


def feed_forwards(model: Any) -> list[Any]:
    """Return the feed-forward layer of each block; raises WordloomError for a family without them."""
    if not isinstance(model, GPT | GPT2 | Llama):
        raise WordloomError(
            "the view 'memories' is defined for gpt, gpt2 and llama models, whose feed-forward layers write "
            f"into the vector that the head reads; not for type {type(model).__name__}"
        )
    blocks: Any = model.blocks
    return [block.feed_forward for block in blocks]


@contextmanager
def _activations(feeds: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Record what each down_proj reads, [B, T, F]; a new pass replaces the last one."""
    found: list[Tensor] = []

    def record(module: Any, args: tuple[Tensor, ...]) -> None:
        if module is feeds[0].down_proj:
            found.clear()
        found.append(args[0])

    hooks = [feed.down_proj.register_forward_pre_hook(record) for feed in feeds]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _merged(
    found: Triggers, activations: Sequence[Tensor], tokens: Tensor, real: Tensor, followers: Tensor
) -> Triggers:
    """Return ``found`` with the contexts of a batch: activations [N, F] of the ``real`` tokens [B, T]."""
    rows, positions = real.nonzero(as_tuple=True)  # [N]
    k, C = found.contexts.shape[2:]
    shifted = torch.nn.functional.pad(tokens, (C - 1, 0), value=NONE)  # [B, C - 1 + T]
    layers = []
    for layer, m in enumerate(activations):
        values, at = m.T.topk(min(k, len(m)), dim=1)  # [F, k']
        where, when = rows[at], positions[at]
        spans = when[..., None] + torch.arange(C)  # [F, k', C], places in the shifted row
        new = {
            "values": values,
            "windows": found.read + where,
            "positions": when.int(),
            "contexts": shifted[where[..., None], spans].int(),
            "followers": followers[at].int(),
        }
        both = {name: torch.cat([getattr(found, name)[layer], new[name]], dim=1) for name in new}
        order = both["values"].argsort(dim=1, descending=True, stable=True)[:, :k]  # earlier ones first
        layers.append({
            name: value.take_along_dim(order if value.dim() == 2 else order[..., None], dim=1)
            for name, value in both.items()
        })  # fmt: skip
    merged = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    return Triggers(**merged, tokens=found.tokens + len(rows), read=found.read + len(tokens))
