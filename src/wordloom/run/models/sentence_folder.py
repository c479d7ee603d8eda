"""How a folder makes vectors of texts, in the files of sentence-transformers: read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError
from wordloom.run.models.embedder import Pooling
from wordloom.text import Tokenizer

__all__ = ["SentenceSettings", "pooling_files", "pooling_of"]

# The flags of 1_Pooling/config.json, one of which is true; from version 6 on there is the word alone.
_FLAGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_WORDS: dict[str, Pooling] = {"mean": "mean", "max": "max", "cls": "cls", "lasttoken": "last"}
_NO_LIMIT = 1 << 20  # a tokenizer_config.json says 1e30 for none


class SentenceSettings(NamedTuple):
    """What a sentence-transformers folder says of itself; ``limit`` counts tokens, marks included."""

    pooling: Pooling
    normalize: bool
    limit: int | None


def pooling_of(folder: str | Path) -> SentenceSettings | None:
    """How the folder of a sentence-transformers model makes vectors of texts; None for another folder.

    Raises CheckpointError for modules that are not computed here.
    """
    folder = Path(folder)
    modules = _read(folder / "modules.json")
    if modules is None:
        return None
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
            raise CheckpointError(f"{folder}: modules.json has a module '{kind}', which is not computed here")
    return SentenceSettings(pooling or "mean", normalize, limit)


def _limit(folder: Path) -> int | None:
    """Their own file's, or from version 6 on that of the tokenizer."""
    own = _read(folder / "sentence_bert_config.json") or {}
    if own.get("do_lower_case") and not _lowers(folder):
        raise CheckpointError(
            f"{folder / 'sentence_bert_config.json'} has do_lower_case, and the tokenizer there tells "
            "capitals apart; put a lower-casing normalizer into tokenizer.json, which all tools read"
        )
    if "max_seq_length" in own:
        given = own["max_seq_length"]
    else:
        given = (_read(folder / "tokenizer_config.json") or {}).get("model_max_length")
    return int(given) if isinstance(given, int | float) and given < _NO_LIMIT else None


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer in ``folder`` lower-cases by itself, so that doing it before changes nothing."""
    tokenizer = Tokenizer.from_pretrained(folder)
    return tokenizer.encode_ids("A B Á", specials="text") == tokenizer.encode_ids("a b á", specials="text")


def _mode(path: Path) -> Pooling:
    given = _read(path) or {}
    if "pooling_mode" in given:
        word = given["pooling_mode"]
        asked = [word] if isinstance(word, str) else list(word)
        known = _WORDS
    else:
        asked = [key for key, value in given.items() if key.startswith("pooling_mode_") and value is True]
        known = _FLAGS
    if len(asked) != 1 or asked[0] not in known:
        found = " and ".join(map(str, asked)) or "no pooling"
        raise CheckpointError(f"{path} asks for {found}; allowed: one of {', '.join(known)}")
    return known[asked[0]]


def pooling_files(dim: int, settings: SentenceSettings) -> dict[str, str]:
    """The files, by name, that :func:`pooling_of` reads beside a model with vectors of ``dim`` components.

    In the layout of sentence-transformers 2, which all later versions read, too.
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
        raise CheckpointError(f"{path} is not JSON ({error}); mend or remove it") from None
