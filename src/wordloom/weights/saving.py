"""Write checkpoint folders, completely or not at all; the files are on disk when the call returns."""

from __future__ import annotations

import filecmp
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from wordloom.data.batches.framed import Frame
from wordloom.errors import CheckpointError, DataError
from wordloom.files import replacement
from wordloom.models import RobertaConfig, body_config, encodes, skeleton
from wordloom.models.building.quantized import is_quantized
from wordloom.models.task_model import SUMMARIES, TaskConfig
from wordloom.weights.configs import TOKEN_IDS, config_to_json, config_to_own_json, format_of
from wordloom.weights.loading import renaming_of
from wordloom.weights.renaming import Renaming, Row, listed
from wordloom.weights.tensors import INDEX, SAFETENSORS, complete

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_UNITS = {
    "": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30
}  # fmt: skip
_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")
SOURCE_TOKENIZER = "source_tokenizer"
# Files that belong to the model whose checkpoint was in the folder before.
_STALE = ("modules.json", "sentence_bert_config.json", "vocabulary.json", SOURCE_TOKENIZER)


class SavesTokenizer(Protocol):
    """A tokenizer that can be saved beside a model, such as ``wordloom.Tokenizer``."""

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

    The new files replace the old ones together: a failure leaves the folder as it was, and after a kill
    :func:`load_model` reads either the old files or the new ones.  Other files in the folder stay.

    Args:
        model: a model, or its (config, state) to save other weights of those shapes, such as an average.  Of
            a model on the meta device, all files but the weights are written, with a config that only
            Wordloom reads.
        folder: the folder to write.
        dtype: precision of the stored weights; None keeps the model's.
        max_shard_size: larger weights are split into several files with an index; bytes, or "500MB", "5GB".
        tokenizer: its files are written with the special tokens that the model reads around texts
            (:mod:`wordloom.weights.saving`); its token ids go into the JSON files.
        source_tokenizer: the tokenizer of sources with a vocabulary of their own.  It goes into a folder of
            that name, which config.json names.
        generation: further settings for generation_config.json.
        files: names of further files and their texts.
        overwrite: replace a checkpoint that is in the folder.

    Raises CheckpointError when ``overwrite`` is False and the folder holds a checkpoint, or a file of the
    same name with another content; when the state does not fit the config; and when the folder cannot be
    written.
    """
    if isinstance(model, nn.Module) and is_quantized(model):
        raise CheckpointError(
            "weights in 8 bits are made from those of a checkpoint and cannot be saved; load it without int8"
        )
    config: Any
    config, state = (model.config, model.state_dict()) if isinstance(model, nn.Module) else model
    folder = Path(folder)
    if dtype is not None and dtype not in _FLOATS:
        raise CheckpointError(f"weights are saved as {listed(map(str, _FLOATS))}, not {dtype}")
    limit = _bytes(max_shard_size)
    renaming = renaming_of(config)
    _check_state(config, state, renaming)
    _check_vocabulary("tokenizer", tokenizer, config, "vocab_size")
    _check_vocabulary("source tokenizer", source_tokenizer, config, "source_vocab")
    _refuse_existing(folder, overwrite)
    stored_dtype = dtype or _narrowest(state.values())
    elsewhere = any(tensor.is_meta for tensor in state.values())
    config_json, generation_json = _json_files(
        config, stored_dtype, tokenizer, source_tokenizer, generation or {}, own=elsewhere
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stale = [path.name for path in folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
        with replacement(folder, last="config.json", stale=[*stale, *_STALE]) as new:
            if not elsewhere:
                _write_weights(new, renaming, state, dtype, limit)
            if tokenizer is not None:
                with_special_tokens(config, tokenizer).save_pretrained(new)
            if source_tokenizer is not None:
                source_tokenizer.save_pretrained(new / SOURCE_TOKENIZER)
            if format_of(config).generates:
                _write_json(new / "generation_config.json", generation_json)
            for name, text in (files or {}).items():
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_text(text, encoding="utf-8")
            _write_json(new / "config.json", config_json)
            if not overwrite:
                _, different, missing = filecmp.cmpfiles(new, folder, os.listdir(new), shallow=False)
                _refuse_names(folder, [*different, *(name for name in missing if (folder / name).exists())])
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} could not be written: {error}") from error


def _json_files(
    config: Any,
    dtype: torch.dtype,
    tokenizer: SavesTokenizer | None,
    source_tokenizer: SavesTokenizer | None,
    generation: Mapping[str, Any],
    *,
    own: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of config.json, in our own words if ``own``, and of generation_config.json."""
    ids = {key: getattr(tokenizer, key.removesuffix("_token_id") + "_id", None) for key in TOKEN_IDS}
    if pads_with_end_token(config, tokenizer):
        ids["pad_token_id"] = None  # so that transformers reads one text at a time, or raises
    theirs = config_to_own_json(config) | ids if own else config_to_json(config, ids)
    theirs["dtype"] = str(dtype).removeprefix("torch.")
    if source_tokenizer is not None:
        theirs["source_tokenizer"] = SOURCE_TOKENIZER
    for key, each in (("vocabulary", tokenizer), ("source_vocabulary", source_tokenizer)):
        if (identity := vocabulary_of(each)) is not None:
            theirs[key] = identity
    derived = format_of(config).token_settings(ids)  # in both files, with equal values
    theirs |= {key: value for key, value in generation.items() if key in derived.keys() & theirs}
    theirs |= {key: value for key, value in generation.items() if key in ids and value is not None}
    known_ids = {key: value for key, value in ids.items() if value is not None}
    return theirs, known_ids | derived | dict(generation)


def vocabulary_of(tokenizer: Any) -> dict[str, Any] | None:
    """Return what identifies ``tokenizer`` in config.json; None for one without a hash."""
    identity: dict[str, Any] | None = getattr(tokenizer, "vocabulary_facts", None)  # of a copied file
    if identity is None and hasattr(tokenizer, "vocabulary_hash"):
        identity = {"size": tokenizer.vocab_size, "sha256": tokenizer.vocabulary_hash()}
    return identity


def _check_vocabulary(kind: str, tokenizer: SavesTokenizer | None, config: Any, setting: str) -> None:
    """Raise CheckpointError if ``tokenizer`` has more ids than the model's ``setting``."""
    if tokenizer is None:
        return
    size = getattr(config, setting)
    if tokenizer.vocab_size > size:
        raise CheckpointError(
            f"the {kind} has {tokenizer.vocab_size} ids, the model a {setting} of {size}; save a model with "
            "the tokenizer it was trained with"
        )


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
    here = ("config.json", *_STALE)
    names = [path.name for path in folder.iterdir() if path.name in here or _WEIGHTS.fullmatch(path.name)]
    _refuse_names(folder, names)


def _refuse_names(folder: Path, names: Sequence[str]) -> None:
    if names:
        raise CheckpointError(
            f"{folder} already holds files of a checkpoint ({listed(sorted(names), most=3)}); choose another "
            "folder, or replace them with overwrite=True (at the command --force)"
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
        tensors = _apart({theirs: tensor.to("cpu", dtype).contiguous() for theirs, tensor in joined.items()})
        save_file(tensors, temporary / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        _write_json(temporary / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors``, with copies of those that share memory with an earlier one, as layers may."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return found


def _shards(
    rows: tuple[Row, ...], state: Mapping[str, Tensor], dtype: torch.dtype | None, limit: int
) -> Iterator[list[Row]]:
    """Yield the rows of each file, in order, at most ``limit`` bytes; a larger tensor gets its own file."""
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
    """Return the narrowest dtype that holds every tensor exactly."""
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


def with_special_tokens(config: Any, tokenizer: Any) -> Any:
    """Return ``tokenizer``, with its ids, for the texts and pairs that the model of ``config`` reads.

    A tokenizer for an encoder that already states the special tokens around texts keeps them.  An encoder
    with one segment gets a tokenizer that puts both texts of a pair into it.  A causal model with a head
    reads special tokens between and after texts, which its original tokenizer does not add.
    """
    body = body_config(config)
    if not hasattr(tokenizer, "with_frame"):
        return tokenizer
    if encodes(body):
        roberta = isinstance(body, RobertaConfig)
        try:
            frame = Frame.of_encoder(tokenizer, doubled=roberta)
        except DataError:  # the tokenizer lacks special tokens that training would need
            pass
        else:
            segment = 0 if roberta or body.type_vocab_size == 1 else 1
            tokenizer = tokenizer.with_frame(frame.start, frame.between, frame.end, second_segment=segment)
        return tokenizer.with_one_segment() if body.type_vocab_size == 1 else tokenizer
    causal = _causal_frame(config, tokenizer)
    if causal is None:
        return tokenizer
    return tokenizer.with_frame(causal.start, causal.between, causal.end, instead=True)


def pads_with_end_token(config: Any, tokenizer: Any) -> bool:
    """Return whether a causal model's head reads a token that its tokenizer also pads with.

    Other tools look for the last token that is no padding, and would take the one before it.
    """
    frame = _causal_frame(config, tokenizer)
    return frame is not None and config.task in SUMMARIES and frame.end == (tokenizer.pad_id,)


def _causal_frame(config: Any, tokenizer: Any) -> Frame | None:
    """Return the special tokens around texts for a causal model with a head; None for any other model."""
    if not isinstance(config, TaskConfig) or config.encodes or not hasattr(tokenizer, "with_frame"):
        return None
    try:
        return Frame.of_causal(tokenizer)
    except DataError:  # the tokenizer has no end token
        return None
