"""The picture of a confusion matrix: what it says, and that it says it in every format."""

from __future__ import annotations

import pytest

from wordloom.errors import WordloomError
from wordloom.inspect.score_plots import confusion_figure, draw_confusion

COUNTS = [[8, 2, 0], [1, 3, 0], [0, 0, 0]]
LABELS = ["low", "middle", "high"]


def test_rows_are_shares_of_what_is_true() -> None:
    figure = confusion_figure(COUNTS, LABELS)
    panel = figure.axes[0]
    shares = panel.images[0].get_array()
    assert shares.tolist() == [[0.8, 0.2, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]
    cells = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in panel.texts}
    assert cells == {(0, 0): "80", (0, 1): "20", (1, 0): "25", (1, 1): "75"}
    assert [t.get_text() for t in panel.get_yticklabels()] == ["low  (10)", "middle  (4)", "high  (0)"]
    assert [t.get_text() for t in panel.get_xticklabels()] == LABELS
    assert panel.get_title() == "11 of 14 correct (78.6%)"
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("predicted label", "true label (n examples)")
    named = confusion_figure(COUNTS, LABELS, "language").axes[0]
    assert (named.get_xlabel(), named.get_ylabel()) == ("predicted language", "true language (n examples)")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_it_is_drawn_into_a_file(tmp_path, suffix) -> None:
    path = tmp_path / f"confusion{suffix}"
    draw_confusion(COUNTS, LABELS, path)
    content = path.read_bytes()
    assert content[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    if suffix == ".svg":
        assert all(label in content.decode() for label in LABELS)


def test_another_ending_is_refused(tmp_path) -> None:
    with pytest.raises(WordloomError, match=r"has no ending that names a picture format.*\.png"):
        draw_confusion(COUNTS, LABELS, tmp_path / "confusion.gif")
