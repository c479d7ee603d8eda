"""Pictures of attention patterns: each kind has a colour of its own, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from wordloom.inspect import figures
from wordloom.inspect.pattern_plots import LayerPattern, draw_patterns, patterns_figure
from wordloom.nn.attention import Pattern

pytest.importorskip("matplotlib", reason="drawing is the plots extra")


def layers_of(*texts: str) -> list[LayerPattern]:
    return [LayerPattern(Pattern.parse(text, causal=True), f"layer {i}") for i, text in enumerate(texts)]


@pytest.mark.parametrize("n", [3, 10, 11, 27])
def test_kinds_have_different_colours(n: int, tmp_path: Path) -> None:
    patterns = layers_of(*(f"band:{width}" for width in range(1, n + 1)))
    figure = patterns_figure(patterns, 30)
    entries = figure.legends[0].get_patches()
    colours = [entry.get_facecolor() for entry in entries]
    assert len(set(colours)) == n
    assert colours[: len(figures.COLOURS)] == [rgba(name) for name in figures.COLOURS[:n]]
    for patch, panel in zip(entries, figure.axes, strict=False):
        mesh = panel.collections[0]
        mesh.update_scalarmappable()
        assert tuple(mesh.get_facecolor()[0]) == patch.get_facecolor()  # the first query sees the first key
    draw_patterns(tmp_path / "a.png", patterns, 30)


def rgba(name: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgba

    return to_rgba(name)
