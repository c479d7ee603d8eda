"""Which of the installed fonts draw the words that matplotlib's own font, DejaVu Sans, has no letters for."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["breadth", "cannot_be_drawn", "fonts_for", "without_remarks"]

_OWN = "DejaVu Sans"
_NARROW, _WIDE = 0.075, 0.13  # inches, of a character of 9 points
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH"}
# what to ask a person to install, and the package that has it in Debian and Ubuntu
_NOTO_CJK = ("Noto Sans CJK", "fonts-noto-cjk")
_EMOJI = ("Symbola", "fonts-symbola")
_NOTO_CORE = "fonts-noto-core"
# scripts that have a Noto font of their name; characters of others begin with half a name (OLD ITALIC ...)
_NAMED = {
    "ARABIC", "ARMENIAN", "BENGALI", "CHEROKEE", "DEVANAGARI", "ETHIOPIC", "GEORGIAN", "GUJARATI", "GURMUKHI",
    "HEBREW", "KANNADA", "KHMER", "LAO", "MALAYALAM", "MONGOLIAN", "MYANMAR", "ORIYA", "SINHALA", "TAMIL",
    "TELUGU", "THAANA", "THAI", "TIBETAN",
}  # fmt: skip


def fonts_for(texts: Sequence[str]) -> tuple[list[str], set[str]]:
    """Font families that have what DejaVu Sans lacks of ``texts``, and the characters that no font here has.

    Fonts installed since matplotlib last looked are made known to it.
    """
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    characters = {character for text in texts for character in text if _is_seen(character)}
    missing = characters - _among(characters, FT2Font(findfont(_OWN)))
    if not missing:
        return [], set()
    has = {family: _among(missing, font) for family, font in _installed()}
    found: list[str] = []
    while missing and has:
        best = max(has, key=lambda family: (len(has[family] & missing), _preference(family)))
        if not has[best] & missing:
            break
        found.append(best)
        missing = missing - has[best]
    return found, missing


def _is_seen(character: str) -> bool:
    """Joiners, selectors and control characters have no form of their own."""
    return unicodedata.category(character) not in ("Cc", "Cf") and not "\ufe00" <= character <= "\ufe0f"


def _among(characters: set[str], font: Any) -> set[str]:
    return {character for character in characters if font.get_char_index(ord(character))}


def _preference(family: str) -> tuple[bool, bool, bool, str]:
    """Of fonts that have as much: one without serifs, as DejaVu Sans is, and always the same one."""
    return "Mono" not in family, family.startswith("Noto Sans"), "Sans" in family, family


def _installed() -> Iterable[tuple[str, Any]]:
    """(family, font) of one upright font of each family whose outlines can be drawn."""
    from matplotlib.font_manager import findSystemFonts, fontManager
    from matplotlib.ft2font import FT2Font

    known = {entry.fname for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - known):
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):  # what matplotlib cannot read draws nothing
            continue
    paths = {entry.name: entry.fname for entry in fontManager.ttflist if entry.style == "normal"}
    for family, path in sorted(paths.items()):
        try:
            font = FT2Font(path)
        except (OSError, RuntimeError):  # removed since matplotlib saw it
            continue
        if font.scalable and "LastResort" not in path:  # which has a box for every character
            yield family, font


def cannot_be_drawn(missing: set[str], texts: Iterable[str]) -> str:
    """One line on the characters ``missing``: in which of ``texts``, and what to install."""
    examples: dict[str, str] = {}
    for text in texts:
        for character in text:
            if character in missing:
                examples.setdefault(_script(character), text)
    fonts = [_font_of(script) for script in examples]
    of = " or ".join(f"the {script} of {text!r}" for script, text in examples.items())
    names, packages = (", ".join(dict.fromkeys(column)) for column in zip(*fonts, strict=True))
    return (
        f"no font here has {of}: drawn as boxes; install {names} (Debian, Ubuntu: {packages}), or draw an "
        ".svg, which is shown in its reader's fonts"
    )


def _script(character: str) -> str:
    first = unicodedata.name(character, "PRIVATE-USE").split()[0]
    if first in _EAST_ASIAN:
        return "Chinese, Japanese or Korean"
    if unicodedata.category(character) in ("So", "Sk"):
        return "emoji or symbols"
    return first.title()


def _font_of(script: str) -> tuple[str, str]:
    by_name = {"Chinese, Japanese or Korean": _NOTO_CJK, "emoji or symbols": _EMOJI}
    named = f"Noto Sans {script}" if script.upper() in _NAMED else "the Noto fonts"
    return by_name.get(script, (named, _NOTO_CORE))


@contextmanager
def without_remarks() -> Iterator[None]:
    """Keeps to itself what matplotlib says of each letter and weight that a font has not."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            yield
    finally:
        log.setLevel(level)


def breadth(text: str) -> float:
    """About how many inches ``text`` takes at 9 points."""
    return sum(
        _WIDE if unicodedata.east_asian_width(character) in "WF" else _NARROW
        for character in text
        if not unicodedata.combining(character)
    )
