"""Read the weights of a checkpoint folder into a model, by the table of stored names for its config."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.errors import CheckpointError, did_you_mean
from wordloom.models import TaskConfig, family_of, skeleton
from wordloom.models.building.build import are_weights_left_out
from wordloom.weights.configs import format_of, load_config, require_equal_settings
from wordloom.weights.families.task_heads import is_head, renaming_of_head
from wordloom.weights.formats import OWN
from wordloom.weights.integrity import check_files
from wordloom.weights.renaming import Renaming, Row, listed, require_equal
from wordloom.weights.tensors import RankFiles, Stored, open_tensors, read_json

_log_once = cache(logging.getLogger(__name__).log)

# Settings that another run of the same weights may change, or whose difference shows in a shape.
_MAY_DIFFER = ("max_seq_len", "hidden_dim", "source_vocab_size", "teacher_forcing", "attention")

_SAMPLED = 256  # numbers of each matrix in a fingerprint


def load_model(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    mapped: bool = False,
) -> nn.Module:
    """Return the model of a checkpoint folder with its weights, in evaluation mode.

    ``dtype`` None keeps every tensor as stored.  Files are memory-mapped and copied tensor by tensor into a
    model without memory, so the weights are held once.  With ``mapped`` nothing is copied: the weights are
    those in the files, for a caller that replaces all of them (``dtype`` and ``device`` have no effect).

    Raises CheckpointError, before any weight is read, when a file is missing, truncated or corrupt, when
    names are missing or unknown, and when a shape differs from the config's.
    """
    folder = Path(folder)
    config = load_config(folder)
    model = skeleton(config)
    if are_weights_left_out():
        model.tie_weights()  # type: ignore[operator]
        return model.to(dtype).eval()
    weights = _Weights(folder, config, model)
    weights.verify()
    state = {
        name: tensor if mapped else tensor.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
        for name, tensor in weights.parameters()
    }
    for copy, original in (weights.renaming.tied_ours or {}).items():
        state[copy] = state[original]
    model.load_state_dict(state, assign=True)
    model.tie_weights()  # type: ignore[operator]
    return model.eval()


def load_parameter(folder: str | Path, name: str) -> Tensor:
    """Return one parameter of a checkpoint folder by our name, such as ``token_embedding.weight``.

    The tensor is on the CPU, as stored, mapped from its file.  No other weight is read.

    Raises CheckpointError as :func:`load_model`, and for a name that the model does not have.
    """
    folder = Path(folder)
    config = load_config(folder)
    model = skeleton(config)
    weights = _Weights(folder, config, model)
    original = (weights.renaming.tied_ours or {}).get(name, name)
    for row in weights.renaming.rows:
        if original in row.ours:
            return row.split(weights.read(row.theirs))[row.ours.index(original)]
    hint = did_you_mean(name, model.state_dict())
    raise CheckpointError(f"the {family_of(config)} in {folder} has no parameter '{name}'; {hint}")


def weights_fingerprint(folder: str | Path) -> str:
    """Return 16 hex digits of SHA-256 over the names, shapes and some numbers of the matrices of a folder.

    Copies of the same weights in float32 and bfloat16 have the same fingerprint, because the numbers are
    rounded to bfloat16.  Raises CheckpointError as :func:`load_model`.
    """
    folder = Path(folder)
    config = load_config(folder)
    weights = _Weights(folder, config, skeleton(config))
    digest = hashlib.sha256()
    for name, tensor in weights.parameters():
        if tensor.dim() > 1:
            step = max(1, tensor.numel() // _SAMPLED)
            some = tensor.flatten()[::step][:_SAMPLED].to(torch.bfloat16).float()
            digest.update(f"{name} {tuple(tensor.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]


@torch.no_grad()
def load_state(model: nn.Module, folder: str | Path) -> None:
    """Copy the weights of a folder into ``model``, bit for bit.

    Raises CheckpointError, before anything is overwritten, as :func:`load_model`; also when the folder holds
    another model, and when a weight would be rounded (stored float32, wanted bfloat16).
    """
    folder = Path(folder)
    config: Any = model.config
    stored_config = load_config(folder)
    require_equal_settings(stored_config, config, folder, may_differ=_MAY_DIFFER)
    weights = _Weights(folder, stored_config, model)
    weights.verify()
    state = model.state_dict()
    for row in weights.renaming.rows:
        entry = weights.entry(row.theirs)
        for name in row.ours:
            if torch.promote_types(getattr(torch, entry.dtype), state[name].dtype) != state[name].dtype:
                raise CheckpointError(
                    f"{folder} stores {row.theirs} as {entry.dtype}, which {state[name].dtype} cannot hold "
                    "exactly; build the model in the stored precision"
                )
    for name, tensor in weights.parameters():
        state[name].copy_(tensor)


class _Weights:
    """The stored tensors of a folder, matched with the parameters of ``model``; no weight is read yet.

    Raises CheckpointError when names, shapes or dtypes do not fit.
    """

    def __init__(self, folder: Path, config: Any, model: nn.Module) -> None:
        self.folder = folder
        self._json = read_json(folder / "config.json")
        self.stored = open_tensors(folder)
        own = isinstance(self.stored, RankFiles) or str(self._json["model_type"]).startswith(OWN)
        self.renaming = renaming_of(config, own=own)
        try:
            self.matched = self.renaming.match(self.stored.entries)
        except CheckpointError as error:
            advice = self._advice({self.renaming.ignored_as(name) or "" for name in self.stored.entries})
            raise CheckpointError(
                f"the weights in {folder} do not fit its config.json: it {error}{advice}"
            ) from None
        self._check_shapes(model)

    def read(self, theirs: str) -> Tensor:
        """Return the tensor that the table calls ``theirs``."""
        return self.stored.read(self.matched.found[theirs])

    def entry(self, theirs: str) -> Stored:
        """Return the shape, dtype and file of the tensor that the table calls ``theirs``."""
        return self.stored.entries[self.matched.found[theirs]]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield our name and the tensor of every parameter, mapped from its file."""
        for row in self.renaming.rows:
            yield from zip(row.ours, row.split(self.read(row.theirs)), strict=True)

    def verify(self) -> None:
        """Check hashes, tied copies and tensors that must be zero, and report unused tensors once."""
        check_files(self.folder)
        for copy, original in self.matched.duplicates.items():
            require_equal(
                self.stored.read(copy), self.read(original), f"{self.folder}: {copy}",
                self.matched.found[original],
            )  # fmt: skip
        for row in self.renaming.rows:
            if not row.ours:
                row.split(self.read(row.theirs))  # raises unless it is zero
        if self.matched.ignored:
            kinds = sorted(set(self.matched.ignored.values()))
            # masks and the like are computed again; a head has trained weights that are left behind
            level = logging.WARNING if any(map(is_head, kinds)) else logging.INFO
            unused = f"{len(self.matched.ignored)} tensors not used: {listed(kinds)}"
            _log_once(level, "%s: %s%s", self.folder, unused, self._advice(kinds))

    def _check_shapes(self, model: nn.Module) -> None:
        shapes = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        expected = self.renaming.to_theirs(shapes)
        wrong = []
        for row in self.renaming.rows:
            entry, shape = self.entry(row.theirs), tuple(expected[row.theirs].shape)
            if entry.shape != shape:
                wrong.append(f"{row.theirs} is {list(entry.shape)}, expected {list(shape)}")
            if entry.dtype not in ("float64", "float32", "float16", "bfloat16"):
                raise CheckpointError(
                    f"{entry.file} stores {row.theirs} as {entry.dtype}; quantised weights are not read "
                    "here: use the float32, float16 or bfloat16 checkpoint"
                )
        if wrong:
            raise CheckpointError(
                f"the weights in {self.folder} do not fit its config.json: {listed(wrong, most=5)}"
            )

    def _advice(self, kinds: Iterable[str]) -> str:
        """Return how to load a task head among the ``kinds`` of tensors if config.json names no class."""
        heads = sorted(filter(is_head, kinds))
        if not heads or self._json.get("architectures"):
            return ""
        return f'; to load {listed(heads)}, name its class as "architectures" in config.json'


def renaming_of(config: Any, *, own: bool | None = None) -> Renaming:
    """Return the table of the model of ``config``.

    ``own`` chooses our names (True) or transformers' (False); None: those that ``config`` is saved under.
    """
    form = format_of(config)
    names = skeleton(config).state_dict().keys()
    if isinstance(config, TaskConfig):
        own = form.written(config.body) is None if own is None else own
        body = renaming_of(config.body, own=own)
        model_type = (form.written(config.body) or {}).get("model_type", form.model_type)
        return renaming_of_head(config, names, body, None if own else model_type)
    ties = (
        getattr(config, "tie_embeddings", False) and "lm_head.weight" in names
    )  # an encoder may have no head
    tied = ("lm_head.weight", "token_embedding.weight") if ties else None
    n_layers = getattr(config, "n_layers", 0)
    if form.written(config) is None if own is None else own:
        rows = [Row(name, (name,)) for name in names]
        return Renaming.of(rows, names=names, n_layers=n_layers, tied=tied)
    if form.renaming is not None:
        return form.renaming(config, names)
    return Renaming.of(
        form.table, names=names, n_layers=n_layers, tied=tied, prefixes=form.prefixes, ignored=form.ignored
    )


def stored_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of ``model`` under the names and in the layout that :func:`save_model` writes."""
    return renaming_of(model.config).to_theirs(model.state_dict())
