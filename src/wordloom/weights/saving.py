"""Writing checkpoint folders: whole or not at all, on the disk when the call returns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from wordloom.errors import CheckpointError
from wordloom.files import replacement
from wordloom.models import skeleton
from wordloom.weights.configs import TOKEN_IDS, config_to_theirs, format_of
from wordloom.weights.folders import renaming_of
from wordloom.weights.framing import framed, pads_with_its_end
from wordloom.weights.renaming import Renaming, Row, listed
from wordloom.weights.tensors import INDEX, SAFETENSORS, complete

__all__ = ["save_model"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_UNITS = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")
SOURCE_TOKENIZER = "source_tokenizer"
# Files that tell how to read another model: the one whose checkpoint was in the folder before.
_OF_ANOTHER = ("modules.json", "sentence_bert_config.json", "vocabulary.json", SOURCE_TOKENIZER)


class SavesTokenizer(Protocol):
    """What a tokenizer must offer to be saved beside a model; ``wordloom.Tokenizer`` does."""

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None

    def save_pretrained(self, folder: Any) -> None: ...


def save_model(
    model: nn.Module | tuple[Any, Mapping[str, Tensor]],
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    max_shard_size: int | str = "5GB",
    tokenizer: SavesTokenizer | None = None,
    source_tokenizer: SavesTokenizer | None = None,
    generation: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a folder that transformers' ``from_pretrained`` and :func:`load_model` read as it is.

    ``model`` is a model, or its (config, state) when other weights of the same shapes are meant (an
    average).  ``dtype`` None keeps the precision.  Weights above ``max_shard_size`` (bytes, or "500MB",
    "5GB") go into several files with an index.  The tokenizer's ids go into config.json and
    generation_config.json, ``generation`` into the latter; its files say what an encoder, or a head on a
    causal model, reads around texts (:func:`wordloom.weights.framing.framed`).  A
    ``source_tokenizer``, of sources that have a vocabulary of their own, goes into a folder of that name,
    which config.json then names.  ``files`` maps the names of more files to their texts.

    The new files replace the old ones together: a failure leaves the folder as it was, and after a kill
    :func:`load_model` reads either the old files or the new ones.  Other files in the folder stay.

    Raises CheckpointError when the folder holds a checkpoint and ``overwrite`` is not given, when the state
    is not the config's, and when the disk cannot take it.
    """
    config: Any
    config, state = (model.config, model.state_dict()) if isinstance(model, nn.Module) else model
    folder = Path(folder)
    if dtype is not None and dtype not in _FLOATS:
        raise CheckpointError(f"weights are saved as {listed(map(str, _FLOATS))}, not {dtype}")
    limit = _bytes(max_shard_size)
    renaming = renaming_of(config)
    _check_state(config, state, renaming)
    sized = [("tokenizer", tokenizer, "vocab_size"), ("source tokenizer", source_tokenizer, "source_vocab")]
    for what, each, size in sized:
        if each is not None and each.vocab_size > getattr(config, size):
            raise CheckpointError(
                f"the {what} has {each.vocab_size} ids, the model a {size} of {getattr(config, size)}; "
                "save a model with the tokenizer it was trained with"
            )
    _refuse_existing(folder, overwrite)
    ids = {key: getattr(tokenizer, key.removesuffix("_token_id") + "_id", None) for key in TOKEN_IDS}
    if pads_with_its_end(config, tokenizer):  # transformers then reads one text at a time, or says why not
        ids["pad_token_id"] = None
    stored_dtype = dtype or _narrowest(state.values())
    theirs = config_to_theirs(config, ids) | {"dtype": str(stored_dtype).removeprefix("torch.")}
    if source_tokenizer is not None:
        theirs["source_tokenizer"] = SOURCE_TOKENIZER
    for key, each in (("vocabulary", tokenizer), ("source_vocabulary", source_tokenizer)):
        if (known := vocabulary_of(each)) is not None:
            theirs[key] = known
    form = format_of(config)
    following = form.token_settings(ids)  # of both files, so that they say the same
    theirs |= {key: value for key, value in (generation or {}).items() if key in following.keys() & theirs}
    known_ids = {key: value for key, value in ids.items() if value is not None} | following
    theirs |= {key: value for key, value in (generation or {}).items() if key in ids and value is not None}

    try:
        folder.mkdir(parents=True, exist_ok=True)
        stale = [path.name for path in folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
        with replacement(folder, last="config.json", stale=[*stale, *_OF_ANOTHER]) as new:
            _write_weights(new, renaming, state, dtype, limit)
            if tokenizer is not None:
                framed(config, tokenizer).save_pretrained(new)
            if source_tokenizer is not None:
                source_tokenizer.save_pretrained(new / SOURCE_TOKENIZER)
            if form.generates:
                _write_json(new / "generation_config.json", known_ids | dict(generation or {}))
            for name, text in (files or {}).items():
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_text(text, encoding="utf-8")
            _write_json(new / "config.json", theirs)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from error


def vocabulary_of(tokenizer: Any) -> dict[str, Any] | None:
    """What config.json says of ``tokenizer``, to know it again; None for one that does not tell."""
    told: dict[str, Any] | None = getattr(tokenizer, "vocabulary_facts", None)  # of a copied file
    if told is None and hasattr(tokenizer, "vocabulary_hash"):
        told = {"size": tokenizer.vocab_size, "sha256": tokenizer.vocabulary_hash()}
    return told


def _check_state(config: Any, state: Mapping[str, Tensor], renaming: Renaming) -> None:
    """Raise CheckpointError unless ``state`` has the names and shapes of the model of ``config``."""
    shapes = {name: tensor.to("meta") for name, tensor in state.items()}
    renaming.to_theirs(shapes)
    wrong = [
        f"{name} is {list(shapes[name].shape)}, expected {list(wanted.shape)}"
        for name, wanted in skeleton(config).state_dict().items()
        if name in shapes and shapes[name].shape != wanted.shape
    ]
    if wrong:
        raise CheckpointError(f"the state to save does not fit its config: {listed(wrong, most=5)}")


def _refuse_existing(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; name a folder to save into")
    complete(folder)
    if overwrite or not folder.exists():
        return
    names = [
        path.name for path in folder.iterdir() if path.name == "config.json" or _WEIGHTS.fullmatch(path.name)
    ]
    if names:
        raise CheckpointError(
            f"{folder} already holds a checkpoint ({listed(sorted(names), most=3)}); choose another folder, "
            "or replace it with overwrite=True (at the command --force)"
        )


def _write_weights(
    temporary: Path, renaming: Renaming, state: Mapping[str, Tensor], dtype: torch.dtype | None, limit: int
) -> None:
    shards = list(_shards(renaming.rows, state, dtype, limit))
    names = [SAFETENSORS]
    if len(shards) > 1:
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    weight_map: dict[str, str] = {}
    total = 0
    for name, rows in zip(names, shards, strict=True):
        # one shard at a time: fused and transposed tensors are copies, and this bounds them
        joined = {row.theirs: row.stored(state) for row in rows}
        tensors = {theirs: tensor.to("cpu", dtype).contiguous() for theirs, tensor in joined.items()}
        save_file(tensors, temporary / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        _write_json(temporary / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(
    rows: tuple[Row, ...], state: Mapping[str, Tensor], dtype: torch.dtype | None, limit: int
) -> Iterator[list[Row]]:
    """Rows in order, cut where the next would pass ``limit`` bytes; a larger tensor has a file of its own."""
    shard: list[Row] = []
    size = 0
    for row in rows:
        parts = [state[name] for name in row.ours] or [row.stored(state)]
        width = (dtype or _narrowest(parts)).itemsize
        nbytes = sum(part.numel() for part in parts) * width
        if shard and size + nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append(row)
        size += nbytes
    yield shard


def _narrowest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The narrowest dtype that holds every tensor exactly."""
    dtypes = {tensor.dtype for tensor in tensors}
    widest = dtypes.pop()
    for dtype in dtypes:
        widest = torch.promote_types(widest, dtype)
    return widest


def _bytes(size: int | str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", str(size).strip(), re.IGNORECASE)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS or float(match.group(1)) <= 0:
        raise CheckpointError(f"max_shard_size takes bytes or a size such as '500MB' or '5GB', not {size!r}")
    return int(float(match.group(1)) * _UNITS[unit])


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
