"""Read and write the files of sentence-transformers that say how a folder embeds texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError
from wordloom.run.models.embedder import Pooling
from wordloom.text import Tokenizer

# The flags of 1_Pooling/config.json, one of which is true; from version 6 on it has one word instead.
_FLAGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_WORDS: dict[str, Pooling] = {"mean": "mean", "max": "max", "cls": "cls", "lasttoken": "last"}
_NO_LIMIT = 1 << 20  # tokenizer_config.json has 1e30 if there is no limit


class SentenceSettings(NamedTuple):
    """The settings of a sentence-transformers folder; ``limit`` counts tokens, special tokens included."""

    pooling: Pooling
    normalize: bool
    limit: int | None


def pooling_of(folder: str | Path) -> SentenceSettings | None:
    """Return how the model in a sentence-transformers folder embeds texts; None for another folder.

    Raises CheckpointError for an unsupported module.
    """
    folder = Path(folder)
    modules = _read(folder / "modules.json")
    if modules is None:
        return None
    _refuse_prompt(folder)
    pooling: Pooling | None = None
    normalize, limit = False, None
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        place = folder / module.get("path", "")
        if kind == "Transformer":
            limit = _limit(place)
        elif kind == "Pooling":
            pooling = _mode(place / "config.json")
        elif kind == "Normalize":
            normalize = True
        else:
            raise CheckpointError(f"{folder}: modules.json has a module '{kind}', which is not supported")
    return SentenceSettings(pooling or "mean", normalize, limit)


def _refuse_prompt(folder: Path) -> None:
    """Raise CheckpointError if sentence-transformers would put a prompt before every text."""
    settings = _read(folder / "config_sentence_transformers.json") or {}
    name = settings.get("default_prompt_name")
    prompt = (settings.get("prompts") or {}).get(name) if name is not None else None
    if prompt:
        raise CheckpointError(
            f"{folder / 'config_sentence_transformers.json'} puts the prompt {prompt!r} before every text, "
            "which is not supported; set default_prompt_name to null there, and write the prompt into the "
            "texts"
        )


def _limit(folder: Path) -> int | None:
    """Return the limit in sentence_bert_config.json, or from version 6 on that of the tokenizer."""
    settings = _read(folder / "sentence_bert_config.json") or {}
    if settings.get("do_lower_case") and not _lowers(folder):
        raise CheckpointError(
            f"{folder / 'sentence_bert_config.json'} has do_lower_case, and the tokenizer there is "
            "case-sensitive; put a lower-casing normalizer into tokenizer.json, which all tools read"
        )
    length = settings.get("max_seq_length")
    if length is None:
        length = (_read(folder / "tokenizer_config.json") or {}).get("model_max_length")
    return int(length) if isinstance(length, int | float) and length < _NO_LIMIT else None


def _lowers(folder: Path) -> bool:
    """Return whether the tokenizer in ``folder`` lower-cases texts itself."""
    tokenizer = Tokenizer.from_pretrained(folder)
    return tokenizer.encode_ids("A B Á", specials="text") == tokenizer.encode_ids("a b á", specials="text")


def _mode(path: Path) -> Pooling:
    config = _read(path) or {}
    if "pooling_mode" in config:
        word = config["pooling_mode"]
        names = [word] if isinstance(word, str) else list(word)
        known = _WORDS
    else:
        names = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        known = _FLAGS
    if len(names) != 1 or names[0] not in known:
        asked_for = " and ".join(map(str, names)) or "no pooling"
        raise CheckpointError(f"{path} asks for {asked_for}; allowed: one of {', '.join(known)}")
    return known[names[0]]


def pooling_files(dim: int, settings: SentenceSettings) -> dict[str, str]:
    """Return the contents of the files, by name, that :func:`pooling_of` reads.

    ``dim`` is the size of the vectors.  The layout is that of sentence-transformers 2, which all later
    versions read.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    flags = {flag: mode == settings.pooling for flag, mode in _FLAGS.items()}
    contents = {
        "sentence_bert_config.json": {"max_seq_length": settings.limit, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": dim, **flags},
        "modules.json": modules,
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); correct or remove it") from None
