"""SentencePiece's character map (``precompiled_charsmap``) as steps of the ``tokenizers`` library.

SentencePiece replaces, from left to right, the longest key of the map that begins at the current
position.  The library's ``Precompiled`` step reads the same map but takes the *shortest* key and applies
it to a whole grapheme, so that a decomposed "ế" loses its tone.  The step is exact on single characters,
and the map's long keys are compositions that ``NFC`` performs too.  The steps made here therefore

1. insert a barrier behind each match of a long key, and before each character that ``NFC`` could attach
   to the one before it,
2. insert a separator wherever ``Precompiled`` could see two characters at once,
3. apply ``Precompiled`` to single characters,
4. replace the long keys that ``NFC`` does not compose to the map's value, and apply ``NFC`` to all others,
5. remove barriers and separators.

Barriers and separators are private-use characters; those in the text are escaped first.
"""

from __future__ import annotations

import base64
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from wordloom.text.definition import Definition

_MOST_REPLACEMENTS = 64  # steps for long keys, one per value; each one reads the whole text

# Each of these in the text is written as the escape character and one of the five characters after them.
_ESCAPE, _BARRIER, _SEPARATOR, _STAND_IN, _START = _MARKS = [chr(0xF0000 + i) for i in range(5)]
_ESCAPED = {mark: _ESCAPE + chr(0xF0005 + i) for i, mark in enumerate(_MARKS)}
_PRIVATE = frozenset(map(chr, range(0xF0000, 0xF000A)))

_IOTA = "\u0345"  # the one combining character that case folding maps to a letter

# Characters of Unicode's class Prepend, which form one grapheme with the character that follows.
_PREPEND = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2"
    "\U000111c3\U000113d1\U0001193f\U00011941\U00011a3a\U00011a84\U00011a85\U00011a86\U00011a87\U00011a88"
    "\U00011a89\U00011d46\U00011f02"
)


class UnsupportedRulesError(ValueError):
    """The map cannot be expressed exactly; the message says why, after "its normalisation rules"."""


class _Plan(NamedTuple):
    """The parts of the steps of one map, without user-defined symbols."""

    charsmap: str  # base64
    singles: frozenset[str]  # characters that are keys
    long_keys: str  # a regular expression; empty without long keys
    seconds: frozenset[str]  # characters behind the first of a long key
    attaching: frozenset[str]  # characters that a barrier must keep apart from the one before
    replacements: tuple[tuple[str, str], ...]  # between Precompiled and NFC
    hides_iota: bool  # the stand-in hides U+0345 within long keys from Precompiled
    composes: bool  # long keys are composed by NFC


def parse_rules(charsmap: bytes) -> dict[str, str]:
    """Return key to replacement for every rule of a serialised map.  Raises ValueError if it is damaged.

    The layout: the size of a double-array trie (darts-clone), its 32-bit units, and the replacements, each
    ended by NUL.
    """
    if len(charsmap) < 4:
        raise ValueError("its normaliser is truncated")
    (size,) = struct.unpack_from("<I", charsmap)
    if size % 4 or size == 0 or 4 + size > len(charsmap):
        raise ValueError("its normaliser is truncated")
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    values = charsmap[4 + size :]
    bases = [i ^ (unit >> 10 << ((unit & 1 << 9) >> 6)) for i, unit in enumerate(units)]
    children: defaultdict[int, list[int]] = defaultdict(list)
    for i, unit in enumerate(units):
        if not unit >> 31 and unit & 0xFF:
            children[i ^ (unit & 0xFF)].append(i)
    suffixes: dict[int, list[tuple[bytes, int]]] = {}

    def read(position: int, depth: int) -> list[tuple[bytes, int]]:
        """Suffix and place of the replacement, for every rule below a node; nodes are shared."""
        if position in suffixes:
            return suffixes[position]
        if depth > 64:
            raise ValueError("its normaliser is damaged")
        base, found = bases[position], []
        if units[position] >> 8 & 1:
            found.append((b"", units[base] & 0x7FFFFFFF))
        for child in children.get(base, ()):
            label = bytes([units[child] & 0xFF])
            found += [(label + suffix, place) for suffix, place in read(child, depth + 1)]
            if len(found) > 4_000_000:
                raise ValueError("its normaliser is damaged")
        suffixes[position] = found
        return found

    try:
        texts = {place: values[place : values.index(b"\0", place)].decode() for _, place in read(0, 0)}
        return {key.decode(): texts[place] for key, place in read(0, 0) if key}
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise ValueError("its normaliser is damaged") from error


def steps(charsmap: bytes, user_defined: Collection[str], prefix: str) -> list[Definition]:
    """Return the normalizer steps that apply the map as SentencePiece does.

    They put ``prefix`` before a text that is not empty, and leave text that spells one of the
    ``user_defined`` symbols as it is.  Raises ValueError if the map is damaged, and UnsupportedRulesError if
    it cannot be expressed exactly.
    """
    plan = _plan(charsmap)
    touched = plan.singles | plan.attaching | _PRIVATE
    if unstable := [symbol for symbol in user_defined if touched.intersection(symbol)]:
        raise UnsupportedRulesError(f"change characters of the user-defined piece {unstable[0]!r}")
    symbols = "|".join(map(_literal, sorted(user_defined, key=len, reverse=True)))
    units = "|".join(filter(None, (symbols, plan.long_keys)))
    result = [_replace({"String": c}, escaped) for c, escaped in _ESCAPED.items()]
    # Precompiled fails on a text that begins with a character that the map deletes
    result.append({"type": "Prepend", "prepend": _START})
    if plan.long_keys:
        attaching = f"|(?={_class(plan.attaching)})" if plan.composes else ""
        result.append(_replace({"Regex": rf"(?:{units})\K{attaching}"}, _BARRIER))
    if plan.hides_iota:
        result.append(_replace({"Regex": f"(?<!{_BARRIER}){_IOTA}"}, _STAND_IN))
    behind = [f"(?<={_class(plan.singles)})"] if plan.singles else []
    before = [f"(?={_class(plan.seconds)})"] if plan.seconds else []
    result.append(_replace({"Regex": "|".join(behind + before)}, _SEPARATOR))
    result.append({"type": "Precompiled", "precompiled_charsmap": plan.charsmap})
    result += [_replace({"String": before}, after) for before, after in plan.replacements]
    result.append(_replace({"String": _SEPARATOR}, ""))
    if plan.hides_iota:
        result.append(_replace({"String": _STAND_IN}, _IOTA))
    if plan.composes:
        result.append({"type": "NFC"})
    if plan.long_keys:
        result.append(_replace({"String": _BARRIER}, ""))
    result.append(_replace({"String": _START}, prefix))
    result += [_replace({"String": escaped}, c) for c, escaped in reversed(_ESCAPED.items())]
    return result


@cache  # models share the few maps that SentencePiece ships
def _plan(charsmap: bytes) -> _Plan:
    rules = parse_rules(charsmap)
    used = set().union(*rules, *rules.values())
    if used & _PRIVATE:
        raise UnsupportedRulesError("use private characters (U+F0000 to U+F0009)")
    single = {key: value for key, value in rules.items() if len(key) == 1}
    long = {key: value for key, value in rules.items() if len(key) > 1}
    if _PREPEND & used:
        raise UnsupportedRulesError("use characters that form one grapheme with the character behind them")
    seconds = frozenset(c for key in long for c in key[1:])
    plan = _Plan(
        charsmap=base64.b64encode(charsmap).decode(),
        singles=frozenset(single),
        long_keys=_pattern(long) if long else "",
        seconds=seconds,
        attaching=frozenset(),
        replacements=(),
        hides_iota=False,
        composes=len(set(long.values())) > _MOST_REPLACEMENTS,
    )
    remaining = long
    if plan.composes:
        plan = _composing(plan, single, long)
        replaced = str.maketrans({c: value for c, value in single.items() if c != _IOTA})
        composed = _nfc(_BARRIER.join(long).translate(replaced)).split(_BARRIER)
        remaining = {key: long[key] for key, text in zip(long, composed, strict=True) if text != long[key]}
    return plan._replace(replacements=_replacements(plan, single, long, remaining))


def _composing(plan: _Plan, single: dict[str, str], long: dict[str, str]) -> _Plan:
    """The plan with the characters to keep apart.

    Raises UnsupportedRulesError where NFC would change more than long keys.
    """
    decompositions = _canonical_decompositions()
    singletons = {c for c in decompositions if unicodedata.normalize("NFC", c) != c}
    values = _BARRIER.join(single.values())
    if not singletons <= plan.singles or _nfc(values) != values:
        raise UnsupportedRulesError("are not closed under canonical composition (NFC)")
    pairs = [parts for parts in decompositions.values() if len(parts) == 2]
    firsts = {key[0] for key in long}  # no barrier stands before a long key
    if any(map(unicodedata.combining, firsts)) or any(
        _nfc(pair) != pair for pair in pairs if pair[1] in firsts
    ):
        raise UnsupportedRulesError("have a key of several characters that begins with a combining one")
    jamo = map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])  # vowels and final consonants
    attaching = {*jamo, *plan.seconds, *(pair[1] for pair in pairs)}
    attaching |= {c for c in _characters() if unicodedata.combining(c)}
    attaching |= {c for c, value in single.items() if value[:1] in attaching}
    return plan._replace(attaching=frozenset(attaching), hides_iota=_IOTA in single)


@cache
def _canonical_decompositions() -> dict[str, str]:
    decompositions = ((c, unicodedata.decomposition(c)) for c in _characters())
    return {
        c: "".join(chr(int(code, 16)) for code in parts.split())
        for c, parts in decompositions
        if parts and not parts.startswith("<")
    }


def _characters() -> Iterator[str]:
    """Yield the characters that may combine or decompose; ASCII has none."""
    return (chr(point) for point in range(0x80, 0x30000) if not 0xD800 <= point < 0xE000)


def _replacements(
    plan: _Plan, single: dict[str, str], long: dict[str, str], remaining: dict[str, str]
) -> tuple[tuple[str, str], ...]:
    """Text to replace and replacement, for the ``remaining`` long keys, the longest text first."""
    found: dict[str, str] = {}
    for key, value in remaining.items():
        text = _after_precompiled(key, single, plan)
        if found.setdefault(text, value + _BARRIER) != value + _BARRIER:
            raise UnsupportedRulesError(
                "give two values to keys that are equal once their characters are replaced"
            )
    if len(found) > _MOST_REPLACEMENTS:
        raise UnsupportedRulesError(
            f"have {len(found):,} keys of several characters that NFC does not compose"
        )
    ends = {single.get(key[-1], key[-1])[-1:] for key in remaining}
    others = (k for k in long if k not in remaining and single.get(k[-1], k[-1])[-1:] in ends)
    if any(_after_precompiled(key, single, plan).endswith(tuple(found)) for key in others):
        raise UnsupportedRulesError("have a key of several characters that ends like another one")
    return tuple(sorted(found.items(), key=lambda pair: -len(pair[0])))


def _after_precompiled(key: str, single: dict[str, str], plan: _Plan) -> str:
    """A long key in the text that Precompiled returns, up to its barrier."""
    text = ""
    for i, c in enumerate(key):
        if i and c == _IOTA and plan.hides_iota:
            text += _STAND_IN
            continue
        if i and c in plan.seconds and not text.endswith(_SEPARATOR):
            text += _SEPARATOR
        text += single.get(c, c) + (_SEPARATOR if c in plan.singles else "")
    return text + _BARRIER


def _nfc(text: str) -> str:
    from tokenizers import normalizers

    normalized: str = normalizers.NFC().normalize_str(text)
    return normalized


class _Trie(dict[str, "_Trie"]):
    """A node of a trie of characters; the key "" marks the end of a word."""


def _pattern(keys: Iterable[str]) -> str:
    """A regular expression that matches the longest of ``keys`` at a place."""
    trie = _Trie()
    for key in keys:
        node = trie
        for c in key:
            node = node.setdefault(c, _Trie())
        node[""] = _Trie()

    def expression(node: _Trie) -> str:
        firsts: defaultdict[str, list[str]] = defaultdict(list)
        for c, below in node.items():
            if c:
                firsts[expression(below)].append(c)
        if not firsts:
            return ""
        choices = "|".join(_class(cs) + below for below, cs in firsts.items())
        return f"(?:{choices})" + ("?" if "" in node else "")

    guard = _class(trie) + _class({c for below in trie.values() for c in below if c})
    return f"(?={guard}){expression(trie)}"  # the guard is quick where no key begins


def _class(characters: Iterable[str]) -> str:
    """A character class of a regular expression."""
    points = sorted(map(ord, characters))
    breaks = [i for i, (a, b) in enumerate(pairwise(points), 1) if b != a + 1]
    ranges = zip([0, *breaks], [*breaks, len(points)], strict=True)
    return "[" + "".join(f"\\x{{{points[a]:X}}}-\\x{{{points[b - 1]:X}}}" for a, b in ranges) + "]"


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(c):X}}}" for c in text)


def _replace(pattern: Definition, content: str) -> Definition:
    return {"type": "Replace", "pattern": pattern, "content": content}
