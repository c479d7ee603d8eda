"""Read tokenizers of four formats into one definition, and write a tokenizer folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wordloom.errors import ChatError, TokenizerError
from wordloom.files import write_text
from wordloom.text.definition import Definition, bert_template, bytes_to_characters
from wordloom.text.encoding import build
from wordloom.text.formats.checks import check
from wordloom.text.formats.sentencepiece import read_model
from wordloom.text.special import ROLE_NAMES, add_tokens

_BPE_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
#: The files of which a folder with a tokenizer has at least one.
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", *_MODEL_FILES),
    *(file for pair in _BPE_FILES for file in pair),
)
_EXPECTED = "tokenizer.json, vocab.json + merges.txt, encoder.json + vocab.bpe, tokenizer.model or vocab.txt"

# definition, tokenizer_config, and the chat template, or the error for one that is no text
Read = tuple[Definition, dict[str, Any], str | ChatError | None]


def read_tokenizer(path: Path) -> Read:
    """Read the tokenizer in a folder, or one file with the configuration beside it.

    In a folder with several formats, the first of these is read: ``tokenizer.json``; ``vocab.json`` +
    ``merges.txt``; ``encoder.json`` + ``vocab.bpe``; ``tokenizer.model``; ``vocab.txt``.
    """
    if path.is_file():
        folder, names = path.parent, [path.name]
    elif path.is_dir():
        folder, names = path, [file.name for file in sorted(path.iterdir())]
    else:
        raise TokenizerError(f"no tokenizer at '{path}': give a folder or file that has {_EXPECTED}")
    config = _read_config(folder)
    template = read_chat_template(folder)
    config.pop("chat_template", None)

    definition, defaults, has_definition = _read_format(folder, names, path, config)
    definition.setdefault("added_tokens", [])
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding"):
        definition.setdefault(part, None)
    try:
        if not has_definition:
            _read_added_tokens(folder, definition, config)
        check(definition)
        backend = build(definition)
    except TokenizerError as error:
        raise TokenizerError(f"'{path}': {error}") from error.__cause__
    for token in definition["added_tokens"]:  # the library decides where a file contradicts itself
        token["id"] = backend.token_to_id(token["content"])
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["id"] is not None]
    return definition, {**defaults, **config}, template


def _read_format(
    folder: Path, names: list[str], path: Path, config: dict[str, Any]
) -> tuple[Definition, dict[str, Any], bool]:
    """Return the definition, the format's special tokens, and whether it is a tokenizer.json."""
    single = names[0] if path.is_file() else None
    parts = {file for pair in _BPE_FILES for file in pair}
    if "tokenizer.json" in names or (single and path.suffix == ".json" and single not in parts):
        return _definition(folder / (single or "tokenizer.json")), {}, True
    for vocabulary, merges in _BPE_FILES:
        if vocabulary in names or merges in names:
            return *_read_bpe(folder / vocabulary, folder / merges, config), False
    model = next(
        (name for name in names if name in _MODEL_FILES or (name == single and name.endswith(".model"))), None
    )
    if model:
        return *read_model(folder / model), False
    if "vocab.txt" in names or (single and single.endswith(".txt")):
        return *_read_wordpiece(folder / (single or "vocab.txt"), config), False
    raise TokenizerError(f"no tokenizer in '{path}': expected {_EXPECTED}")


def _definition(path: Path) -> Definition:
    definition = _json(path)
    model = definition.get("model")
    if not isinstance(model, dict):
        raise TokenizerError(f"'{path}' is not a tokenizer.json (it has no 'model'): expected {_EXPECTED}")
    if "type" not in model:  # files written before the library named the model's type
        model["type"] = "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece"
    return definition


def _read_config(folder: Path) -> dict[str, Any]:
    """Return ``tokenizer_config.json``, updated over the older ``special_tokens_map.json``."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= {key: value for key, value in _json(folder / name).items() if value is not None}
    return config


def read_chat_template(folder: Path) -> str | ChatError | None:
    """Return the chat template of ``chat_template.jinja``, else that of ``tokenizer_config.json``, if any.

    The configuration has it as a text, or as the default of several with names: a list of objects, or an
    object.  Anything else gives an error, to be raised where the template is needed.
    """
    path, name = folder / "chat_template.jinja", ""
    found: Any = _text(path) if path.is_file() else None
    if found is None:
        path, name = folder / "tokenizer_config.json", "chat_template "
        found = _read_config(folder).get("chat_template")
    holds = f"'{path}': {name}holds"
    if isinstance(found, list):
        if not all(isinstance(entry, dict) and {"name", "template"} <= entry.keys() for entry in found):
            return ChatError(
                f"{holds} a list whose items are not objects of a name and a template; correct it"
            )
        found = {str(entry["name"]): entry["template"] for entry in found}  # the last of equal names
    if isinstance(found, dict):
        if "default" not in found:
            names = ", ".join(map(repr, found)) or "none"
            return ChatError(f"{holds} no template of the name 'default'; the names there are: {names}")
        found = found["default"]
    elif found is None:
        return None
    if isinstance(found, str) and found.strip():
        return found
    what = "an empty text" if isinstance(found, str) else f"{json.dumps(found)[:40]}, not a text"
    return ChatError(f"{holds} {what}; give it a Jinja template")


def _read_added_tokens(folder: Path, definition: Definition, config: dict[str, Any]) -> None:
    """Add the tokens of ``added_tokens_decoder`` in the configuration, or else of ``added_tokens.json``."""
    file, name = folder / "added_tokens.json", "tokenizer_config.json, added_tokens_decoder"
    entries = config.get("added_tokens_decoder")
    if entries is None and file.is_file():
        entries, name = {index: token for token, index in _json(file).items()}, file.name
    try:
        by_id = {int(index): entry for index, entry in (entries or {}).items()}
    except (ValueError, TypeError, AttributeError):
        raise TokenizerError(f"'{folder}': {name} is no object of ids and tokens") from None
    add_tokens(definition, by_id, f"'{folder}': {name}")


def _read_bpe(
    vocabulary_file: Path, merges_file: Path, config: dict[str, Any]
) -> tuple[Definition, dict[str, Any]]:
    """Read GPT-2's byte-level BPE, or the BPE of the first GPT, whose words end in ``</w>``."""
    vocabulary = _json(vocabulary_file)
    if not all(isinstance(index, int) for index in vocabulary.values()):
        raise TokenizerError(f"'{vocabulary_file}' is not a vocabulary: expected an object of token to id")
    lines = [line.removesuffix("\r") for line in _text(merges_file).split("\n")]
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    for number, merge in enumerate(merges, 1):
        if len(merge) != 2:
            raise TokenizerError(f"'{merges_file}': merge {number} is not two tokens: {' '.join(merge)!r}")
    definition: Definition = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "post_processor": None,
    }
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    if all(character in vocabulary for character in bytes_to_characters()):
        prefix = bool(config.get("add_prefix_space", False))
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": prefix,
            "trim_offsets": True,
            "use_regex": True,
        }
        definition |= {"pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
        if "<|endoftext|>" in vocabulary:  # GPT-2 has this one token for everything
            return definition, {f"{role}_token": "<|endoftext|>" for role in ("bos", "eos", "unk")}
        names = {role: next((n for n in ROLE_NAMES[role] if n in vocabulary), None) for role in ROLE_NAMES}
        return definition, {f"{role}_token": name for role, name in names.items() if name}
    if any(token.endswith("</w>") for token in vocabulary):
        bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
        definition["normalizer"] = bert | {"strip_accents": None, "lowercase": True}
        definition["pre_tokenizer"] = {"type": "BertPreTokenizer"}
        definition["decoder"] = {"type": "BPEDecoder", "suffix": "</w>"}
        definition["model"] = model | {"unk_token": "<unk>", "end_of_word_suffix": "</w>"}
        return definition, {"unk_token": "<unk>"}
    raise TokenizerError(
        f"'{vocabulary_file}' is neither byte-level BPE (it lacks some of the 256 byte characters) nor the "
        "first GPT's (no token ends in '</w>'): give a tokenizer.json instead"
    )


def _read_wordpiece(path: Path, config: dict[str, Any]) -> tuple[Definition, dict[str, Any]]:
    """Read BERT's ``vocab.txt``, one token per line.

    The tokenizer lower-cases if ``do_lower_case`` is true.  Without that key, it lower-cases if no token in
    the vocabulary, apart from special tokens, has an upper-case letter.
    """
    tokens = _text(path).split("\n")
    tokens = [token.removesuffix("\r") for token in (tokens[:-1] if tokens[-1] == "" else tokens)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if "[UNK]" not in vocabulary:
        raise TokenizerError(f"'{path}' is not a WordPiece vocabulary: it has no line '[UNK]'")
    if len(vocabulary) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise TokenizerError(f"'{path}' has the token {twice!r} twice: ids would be ambiguous")
    lower = config.get("do_lower_case")
    if lower is None:
        lower = not any(
            token != token.lower() for token in tokens if not (token[:1] == "[" and token[-1:] == "]")
        )
    definition = _wordpiece_definition(
        vocabulary,
        lower=lower,
        strip_accents=config.get("strip_accents"),
        chinese=bool(config.get("tokenize_chinese_chars", True)),
    )
    names = {role: f"[{role.upper()}]" for role in ("pad", "unk", "mask", "cls", "sep")}
    roles = {f"{role}_token": name for role, name in names.items() if name in vocabulary}
    return definition, {"do_lower_case": lower, **roles}  # transformers lower-cases by default


def _wordpiece_definition(
    vocabulary: dict[str, int], *, lower: bool, strip_accents: bool | None, chinese: bool
) -> Definition:
    """Return the definition of BERT's tokenizer as transformers writes it."""
    definition: Definition = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": chinese,
            "strip_accents": strip_accents,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:
        definition["post_processor"] = bert_template({name: vocabulary[name] for name in ("[CLS]", "[SEP]")})
    return definition


def write_tokenizer(
    folder: Path, definition: dict[str, Any], config: dict[str, Any], chat_template: str | ChatError | None
) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and, if there is one, ``chat_template.jinja``.

    Each file is replaced completely or not at all.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False, indent=1))
        write_text(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2) + "\n")
        if isinstance(chat_template, str):
            write_text(folder / "chat_template.jinja", chat_template)
    except OSError as error:
        raise TokenizerError(
            f"cannot write the tokenizer to '{folder}': {error.strerror or error}; choose another folder"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(
            f"'{path}' is not valid JSON ({error}): it is truncated or not a tokenizer"
        ) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"'{path}' does not hold a JSON object: it is not a tokenizer file")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"'{path}' is not UTF-8 (byte {error.start}): it is not a tokenizer file"
        ) from error
    except OSError as error:
        raise TokenizerError(f"cannot read '{path}': {error.strerror}") from error
