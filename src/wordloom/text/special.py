"""Special tokens: their roles, their places in a text, and a tokenizer that does not recognise them.

A special token in a user's text is interpreted only on request.  The ``tokenizers`` library always
interprets them, so ordinary text is encoded by :func:`without_specials`, a copy with the same ids whose
special tokens have names that no text can contain.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from wordloom.errors import TokenizerError, did_you_mean
from wordloom.text.arguments import check_texts
from wordloom.text.definition import Definition, full_vocabulary, merge_pairs, special_tokens

ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
NEW_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order in which new tokens get ids
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")

# Well-known names of each role, used without a tokenizer_config.json that gives the roles.
ROLE_NAMES = {
    "bos": ("<s>", "<|begin_of_text|>", "<|startoftext|>", "<bos>", "[BOS]"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]"),
    "pad": ("<pad>", "<|pad|>", "[PAD]"),
    "unk": ("<unk>", "<|unk|>", "[UNK]"),
    "mask": ("<mask>", "<|mask|>", "[MASK]"),
    "cls": ("<cls>", "[CLS]"),
    "sep": ("<sep>", "[SEP]"),
}


def roles_by_name(tokens: list[str]) -> dict[str, str]:
    """Return role to token for the tokens with a name from :data:`ROLE_NAMES`."""
    found = {role: next((n for n in names if n in tokens), None) for role, names in ROLE_NAMES.items()}
    return {role: name for role, name in found.items() if name is not None}


def roles_given(special: Sequence[str] | Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the tokens in order, and role to token, from a list of names or a mapping of role to name.

    Raises TokenizerError for an unknown role, an empty or repeated token, or a pad token that is also eos.
    """
    if isinstance(special, Mapping):
        for role in special:
            if role not in ROLES:
                raise TokenizerError(f"special token role '{role}' is unknown: {did_you_mean(role, ROLES)}")
        roles = dict(special)
        tokens = list(dict.fromkeys(check_texts(special.values(), "special_tokens")))
    else:
        tokens = list(check_texts(special, "special_tokens"))
        roles = roles_by_name(tokens)
        if len(set(tokens)) < len(tokens):
            raise TokenizerError(f"special_tokens has a token twice: {', '.join(tokens)}; give each once")
    if any(len(token) < 2 or token != token.strip() for token in tokens):
        raise TokenizerError(
            f"special_tokens has a token that is shorter than two characters or begins or ends with a space: "
            f"{tokens}; name them like '<|endoftext|>'"
        )
    if "pad" in roles and roles["pad"] in (roles.get("eos"), roles.get("bos")):
        raise TokenizerError(
            f"the pad token '{roles['pad']}' is also the eos or bos token, so a model could never learn to "
            "stop: give padding a token of its own, such as '<|pad|>'"
        )
    return tokens, roles


def added_token(content: str, index: int, *, special: bool = True, entry: Any = None) -> dict[str, Any]:
    """Return an entry of ``added_tokens`` that matches exactly its content.

    ``entry`` is that of ``tokenizer_config.json``; an object there has flags that match more.
    """
    given = entry if isinstance(entry, dict) else {}
    flags = {name: bool(given.get(name, False)) for name in _FLAGS}
    return {"id": index, "content": content, **flags, "special": special}


def add_tokens(definition: Definition, entries: Mapping[int, Any], where: str) -> None:
    """Add the tokens of ``entries``, id to name or to an object with flags, to a vocabulary without them.

    Raises TokenizerError for ids that are not the next ones, and for a token that has another id.
    """
    vocabulary = full_vocabulary(definition)
    known = {token["content"] for token in definition["added_tokens"]}
    for index, entry in sorted(entries.items()):
        content = token_name(entry)
        if content is None:
            raise TokenizerError(f"{where}: id {index} has no token; give its name")
        wanted = vocabulary.setdefault(content, max(vocabulary.values(), default=-1) + 1)
        if wanted != index:
            raise TokenizerError(
                f"{where} gives {content!r} the id {index}, and it has {wanted} here; use a tokenizer.json"
            )
        if content not in known:
            is_special = isinstance(entry, dict) and bool(entry.get("special", False))
            definition["added_tokens"].append(added_token(content, index, special=is_special, entry=entry))
    definition["added_tokens"].sort(key=lambda token: token["id"])


def mark_special(definition: Definition, content: str, entry: Any = None) -> None:
    """Make ``content`` a special token; a new one gets the next id, as in transformers."""
    for token in definition["added_tokens"]:
        if token["content"] == content:
            token["special"] = True
            return
    vocabulary = full_vocabulary(definition)
    index = vocabulary.get(content, max(vocabulary.values(), default=-1) + 1)
    definition["added_tokens"].append(added_token(content, index, entry=entry))
    definition["added_tokens"].sort(key=lambda token: token["id"])


def without_specials(definition: Definition) -> Definition:
    """Return the definition with the same ids, in which the name of a special token is ordinary text.

    Special tokens, also the unknown token, get random names, so that no text can be written to contain one.
    """
    specials = special_tokens(definition)
    salt = secrets.token_hex(16)
    renamed = {content: f"\uffff \x00 {salt} {index}" for content, index in specials.items()}
    twin = copy.deepcopy({key: value for key, value in definition.items() if key != "model"})
    twin["post_processor"] = twin["truncation"] = twin["padding"] = None
    for token in twin["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
    model = dict(definition["model"])
    if isinstance(model.get("vocab"), list):
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {renamed.get(token, token): index for token, index in model["vocab"].items()}
    if "merges" in model:  # without merges that would join the characters of a special token
        model["merges"] = [
            [left, right]
            for left, right in merge_pairs(definition)
            if not {left, right, left + right} & renamed.keys()
        ]
    if model.get("unk_token") is not None:
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    twin["model"] = model
    return twin


def finder(contents: list[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches any of these tokens, the longest first; None for no tokens."""
    if not contents:
        return None
    return re.compile("|".join(re.escape(c) for c in sorted(contents, key=lambda c: (-len(c), c))))


def token_name(entry: object) -> str | None:
    """Return the token of an entry of ``tokenizer_config.json``, a string or an object with ``content``."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) and entry else None
