"""Choose installed fonts for characters that matplotlib's own font, DejaVu Sans, lacks."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_OWN = "DejaVu Sans"
_NARROW, _WIDE = 0.075, 0.13  # widths of a character of 9 points, in inches
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH"}
# a font to install, and its package in Debian and Ubuntu
_NOTO_CJK = ("Noto Sans CJK", "fonts-noto-cjk")
_EMOJI = ("Symbola", "fonts-symbola")
_NOTO_CORE = "fonts-noto-core"
# scripts with a Noto font of the same name; names such as OLD ITALIC have two words
_NAMED = {
    "ARABIC", "ARMENIAN", "BENGALI", "CHEROKEE", "DEVANAGARI", "ETHIOPIC", "GEORGIAN", "GUJARATI", "GURMUKHI",
    "HEBREW", "KANNADA", "KHMER", "LAO", "MALAYALAM", "MONGOLIAN", "MYANMAR", "ORIYA", "SINHALA", "TAMIL",
    "TELUGU", "THAANA", "THAI", "TIBETAN",
}  # fmt: skip


def fonts_for(texts: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the font families that supply what DejaVu Sans lacks, and the characters that no font has.

    Fonts that were installed after matplotlib built its list are added to the list.
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
    """Return whether ``character`` is visible; joiners, selectors and control characters are not."""
    return unicodedata.category(character) not in ("Cc", "Cf") and not "\ufe00" <= character <= "\ufe0f"


def _among(characters: set[str], font: Any) -> set[str]:
    return {character for character in characters if font.get_char_index(ord(character))}


def _preference(family: str) -> tuple[bool, bool, bool, str]:
    """Return a sort key that prefers fonts without serifs, like DejaVu Sans, and is deterministic."""
    return "Mono" not in family, family.startswith("Noto Sans"), "Sans" in family, family


def _installed() -> Iterable[tuple[str, Any]]:
    """Yield (family, font) for one upright font of each family whose outlines can be drawn."""
    from matplotlib.font_manager import findSystemFonts, fontManager
    from matplotlib.ft2font import FT2Font

    known = {entry.fname for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - known):
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):  # matplotlib cannot read this font
            continue
    paths = {entry.name: entry.fname for entry in fontManager.ttflist if entry.style == "normal"}
    for family, path in sorted(paths.items()):
        try:
            font = FT2Font(path)
        except (OSError, RuntimeError):  # the font was removed
            continue
        if font.scalable and "LastResort" not in path:  # LastResort has a box for every character
            yield family, font


def cannot_be_drawn(missing: set[str], texts: Iterable[str]) -> str:
    """Return a warning that names the ``missing`` characters, texts with them, and fonts to install."""
    examples: dict[str, str] = {}
    for text in texts:
        for character in text:
            if character in missing:
                examples.setdefault(_script(character), text)
    fonts = [_font_of(script) for script in examples]
    characters = " or ".join(f"the {script} of {text!r}" for script, text in examples.items())
    names, packages = (", ".join(dict.fromkeys(column)) for column in zip(*fonts, strict=True))
    return (
        f"no installed font has {characters}, which are drawn as boxes; install {names} (Debian, Ubuntu: "
        f"{packages}), or draw an .svg, which uses the reader's fonts"
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
def without_font_warnings() -> Iterator[None]:
    """Suppress matplotlib's warnings about missing characters and font weights."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            yield
    finally:
        log.setLevel(level)


def width_of(text: str) -> float:
    """Estimate the width in inches of ``text`` at 9 points."""
    return sum(
        _WIDE if unicodedata.east_asian_width(character) in "WF" else _NARROW
        for character in text
        if not unicodedata.combining(character)
    )
