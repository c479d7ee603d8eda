"""Words in every script: by fonts that are installed, told of where none is, and as text in an .svg."""

import logging
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

matplotlib = pytest.importorskip("matplotlib", reason="drawing is the plots extra")

from matplotlib import font_manager  # noqa: E402

from wordloom.errors import VectorError  # noqa: E402
from wordloom.inspect import draw_axes, draw_map  # noqa: E402
from wordloom.inspect.fonts import fonts_for, width_of  # noqa: E402
from wordloom.vectors import KeyedVectors, word_map  # noqa: E402

WORDS = ["国王", "नमस्ते", "สวัสดี", "🦄", "король", "king", "ملك"]


@pytest.fixture
def no_fonts(monkeypatch):
    """Only what matplotlib brings is installed."""
    own = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    font_manager.fontManager._findfont_cached.cache_clear()
    yield
    font_manager.fontManager._findfont_cached.cache_clear()


def a_font(path: Path, family: str, characters: str) -> str:
    """A font whose letters are black squares."""
    builder_of = pytest.importorskip("fontTools.fontBuilder")
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((50, 0))
    for corner in ((50, 800), (950, 800), (950, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [".notdef", *(f"u{ord(character):05X}" for character in characters)]
    builder = builder_of.FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 50)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


def the_map(words):
    vectors = KeyedVectors(words, np.random.default_rng(0).normal(size=(len(words), 5)))
    return word_map(vectors, words, topn=0)


def test_what_has_no_font_is_told_in_one_line(no_fonts, tmp_path, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_map(the_map(WORDS), tmp_path / "map.png")
    [record] = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.WARNING
    for part in (
        "the Chinese, Japanese or Korean of '国王'",
        "the Devanagari of 'नमस्ते'",
        "the Thai of 'สวัสดี'",
        "the emoji or symbols of '🦄'",
        "install Noto Sans CJK, Noto Sans Devanagari, Noto Sans Thai, Symbola",
        "fonts-noto-cjk, fonts-noto-core, fonts-symbola",
    ):
        assert part in said
    assert "king" not in said
    assert "\n" not in said


def attention(path):
    from wordloom.inspect import AttentionMap

    AttentionMap(("国王", "king"), torch.full((1, 1, 2, 2), 0.5)).save(path)


def alignment(path):
    from wordloom.inspect import Alignment

    Alignment(("国王",), ("king",), torch.ones(1, 1, 1, 1)).save(path)


def gradients(path):
    from wordloom.inspect import GradientFlow, draw_gradients

    flow = GradientFlow(norms={"layer 0 h": (1.0, 0.5)}, windows=1, recurrences=(), steps=1)
    draw_gradients(path, {"国王": flow})


def forgetting(path):
    from wordloom.inspect.score_plots import draw_forgetting

    run = SimpleNamespace(remedy="国王", label="b", after=2.0, before=1.0, score=0.5, metric="accuracy")
    draw_forgetting(path, [run], ["国王", "c"])


def lengths(path):
    from wordloom.evaluate import LengthBin, Score
    from wordloom.inspect import draw_lengths

    draw_lengths(path, {"国王": [LengthBin(1, 5, 20, Score("bleu", 1.0, None, "bleu"))]})


def confusion(path):
    from wordloom.inspect.score_plots import draw_confusion

    draw_confusion([[1, 0], [0, 1]], ["国王", "king"], path)


@pytest.mark.parametrize("draw", [attention, alignment, gradients, forgetting, lengths, confusion])
def test_every_picture_warns_once_of_characters_that_no_font_has(no_fonts, tmp_path, caplog, draw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(tmp_path / "drawn.png")
    [record] = caplog.records
    assert "the Chinese, Japanese or Korean of '国王'" in record.getMessage()
    assert "install Noto Sans CJK" in record.getMessage()
    assert (tmp_path / "drawn.png").exists()
    with pytest.raises(VectorError, match="has no ending that names a picture format"):
        draw(tmp_path / "drawn.txt")


def test_words_that_matplotlibs_own_font_has_need_no_other(no_fonts, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(font_manager, "findSystemFonts", None)  # not even looked for
    assert fonts_for(["king", "король", "naïve", "ملك", "don’t", "a\u200db\ufe0f"]) == ([], set())
    draw_map(the_map(["king", "король"]), tmp_path / "map.png")
    assert not caplog.records


def test_an_installed_font_is_used(no_fonts, tmp_path, caplog, monkeypatch):
    draw_map(the_map(["国王", "king", "boy"]), tmp_path / "boxes.png")
    assert len(caplog.records) == 1
    paths = [
        a_font(tmp_path / "a.ttf", "Some Hanzi", "国"),
        a_font(tmp_path / "b.ttf", "More Sans", "国王"),
        a_font(tmp_path / "c.ttf", "Devanagari", "नमस"),
    ]
    (tmp_path / "damaged.ttf").write_bytes(b"no font")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [*paths, str(tmp_path / "damaged.ttf")])
    assert fonts_for(["国王", "king"]) == (["More Sans"], set())
    families, missing = fonts_for(["国王", "नमस्ते"])
    assert families == ["Devanagari", "More Sans"]
    assert missing == set("्ते")
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("png", "pdf"):
            draw_map(the_map(["国王", "king", "boy"]), tmp_path / f"drawn.{suffix}")
    assert not caplog.records
    assert (tmp_path / "drawn.png").read_bytes() != (tmp_path / "boxes.png").read_bytes()
    assert matplotlib.rcParams["font.family"] == ["sans-serif"]


def test_an_svg_keeps_its_words_as_text(no_fonts, tmp_path, caplog):
    values = np.linspace(-1, 1, len(WORDS) * 3).reshape(-1, 3).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_map(the_map(WORDS), tmp_path / "map.svg")
        draw_axes(WORDS, values[:, :1], ["小 → 大"], tmp_path / "bars.svg")
        draw_axes(WORDS, values[:, :2], ["小", "大"], tmp_path / "plane.svg")
        draw_axes(WORDS, values, ["小", "大", "中"], tmp_path / "table.svg")
    assert not caplog.records
    for name in ("map", "bars", "plane", "table"):
        root = ElementTree.fromstring((tmp_path / f"{name}.svg").read_bytes())
        texts = {"".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert texts >= set(WORDS)
        styles = [text.get("style") for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert all("sans-serif" in style for style in styles)


def test_the_axes_of_pictures_leave_room_for_wide_letters():
    from wordloom.inspect.vector_plots import axes_figure

    assert width_of("国王国王") > 1.5 * width_of("king")
    assert width_of("e\u0301") == width_of("e")
    words = ["国王" * 6, "king"]
    for axes in (1, 3):
        figure = axes_figure(words, np.ones((2, axes), np.float32), ["up"] * axes)
        labels = figure.axes[0].get_yticklabels()
        renderer = figure.canvas.get_renderer()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert min(label.get_window_extent(renderer).x0 for label in labels) >= 0
