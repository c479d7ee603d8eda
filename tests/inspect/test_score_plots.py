"""The pictures of scores: confusion matrices, scores by the length of the source, and forgetting."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from wordloom.cli.inspect.scores import print_lengths
from wordloom.errors import WordloomError
from wordloom.evaluate import bleu_by_length
from wordloom.evaluate.positions import PositionBits
from wordloom.inspect.score_plots import (
    confusion_figure,
    draw_confusion,
    draw_lengths,
    draw_positions,
    forgetting_figure,
    lengths_figure,
    positions_figure,
)
from wordloom.run.sweep.forgetting import REMEDIES, Forgetting

pytest.importorskip("matplotlib", reason="drawing is the plots extra")


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


def test_a_score_that_is_zero_by_definition_is_not_drawn_below_a_worse_one() -> None:
    short = ["ja", "nein danke"] * 10
    long = ["der Hund läuft durch das hohe Gras", "zwei Männer spielen heute Fußball im Park"] * 10
    sources = short + long
    bad = ["der Hund bleibt hier stehen"] * 20 + ["der Hund läuft durch das Haus"] * 20
    runs = {
        "perfect": bleu_by_length(sources, sources, sources, width=3, resamples=0),
        "bad": bleu_by_length(sources, bad, sources, width=3, resamples=0),
    }
    assert runs["perfect"][0].score.value == 0.0
    panel = lengths_figure(runs).axes[0]
    perfect, worse = (np.asarray(line[0].get_ydata(), float) for line in panel.containers)
    assert np.isnan(perfect[0])
    assert perfect[1] == pytest.approx(100)
    assert not np.isnan(worse).any()
    lines = [line for line in panel.lines if line.get_linestyle() == "-"]
    assert max(line.get_zorder() for line in lines) < min(part[0].get_zorder() for part in panel.containers)
    said = io.StringIO()
    print_lengths(Console(file=said, width=30), runs)
    assert "…" not in said.getvalue()
    [row] = (line for line in said.getvalue().splitlines() if line.split()[:1] == ["1–3"])
    assert row.split()[:3] == ["1–3", "20", "–"]
    assert "note: perfect on 1–3 words: bleu is 0 by definition" in said.getvalue()
    label = panel.get_xlabel()
    assert label.startswith("source length in words (n sentences)")
    assert "perfect: no BLEU for 1–3 words" in label
    assert "bad" not in label


def run(score: float, after: float, *, before: float = 4.0, remedy: int = 0) -> Forgetting:
    return Forgetting(
        folder=Path("run"),
        remedy=REMEDIES[remedy],
        label=f"rate {after}",
        setting=after,
        tokens=1,
        before=before,
        after=after,
        metric="accuracy",
        score=score,
    )


def test_from_one_checkpoint_on_the_scale_is_what_was_forgotten() -> None:
    changes = (0.01, 0.02, 0.1, 1.0, 4.0, -0.03)
    runs = [run(0.1 * at, 4.0 + change) for at, change in enumerate(changes)]
    runs.append(run(0.5, 4.2, before=9.0, remedy=4))  # trained from scratch
    (panel,) = forgetting_figure(runs, REMEDIES).axes
    assert panel.get_ylabel() == "old task: loss above the checkpoint's (nats)"
    drawn = np.concatenate([line.get_ydata() for line in panel.lines if line.get_marker() in "oP"])
    np.testing.assert_allclose(drawn, [*changes, 0.2])
    places = panel.transData.transform([(0.0, change) for change in sorted((*changes, 0.0))])[:, 1]
    apart = np.diff(places) / np.ptp(places)
    assert apart.min() > 0.04  # on an even scale a hundredth of a nat is a four-hundredth of the height
    low, high = panel.get_ylim()
    assert low < -0.03 < 4.0 < high
    ticks = dict(
        zip(panel.get_yticks(), (label.get_text() for label in panel.get_yticklabels()), strict=True)
    )
    assert ticks[0.0] == "0"
    assert ticks[1.0] == "+1"
    heights = panel.transData.transform([(0.0, tick) for tick in ticks])[:, 1]
    assert np.diff(heights).min() > panel.figure.dpi * 9 / 72  # in points: labels do not overlap
    assert not panel.yaxis.get_minorticklocs().size
    assert "checkpoint before training: 4.000" in [text.get_text() for text in panel.get_legend().get_texts()]


def test_from_several_checkpoints_it_is_the_loss() -> None:
    (panel,) = forgetting_figure([run(0.1, 4.5), run(0.2, 3.5, before=3.0)], REMEDIES).axes
    assert panel.get_ylabel() == "old task: loss (nats), lower is better"
    assert panel.get_yscale() == "linear"


def test_a_run_that_forgot_nothing_is_drawn() -> None:
    (panel,) = forgetting_figure([run(0.1, 4.0)], REMEDIES).axes
    low, high = panel.get_ylim()
    assert low < 0.0 < high


NO_FORMULAS = ["$0-$50", "a$_$", "$\\frac$"]


def groups(*spans: tuple[int, int]) -> list[PositionBits]:
    return [PositionBits(first, stop, 10, 10, 1.0 + first / 100) for first, stop in spans]


def test_dollars_in_names_begin_no_formula(tmp_path: Path) -> None:
    """A formula would lose its dollars, or could not be drawn."""
    bins = bleu_by_length(["a b c d"] * 20, ["a b c d"] * 20, ["a b c d"] * 20, width=4, resamples=0)
    path = tmp_path / "a.svg"
    for draw, beside in (
        (lambda: draw_confusion(COUNTS, NO_FORMULAS, path), [(10, 0), (4, 1), (0, 2)]),
        (lambda: draw_lengths(path, dict.fromkeys(NO_FORMULAS, bins)), []),
        (lambda: draw_positions(path, dict.fromkeys(NO_FORMULAS, groups((1, 17)))), []),
    ):
        draw()
        texts = {text.strip() for text in ElementTree.fromstring(path.read_bytes()).itertext()}
        assert set(NO_FORMULAS) <= texts
        assert {f"{NO_FORMULAS[at]}  ({count})" for count, at in beside} <= texts


def test_groups_of_different_windows_have_places_of_their_own() -> None:
    runs = {"long": groups((1, 17), (17, 33), (33, 49)), "short": groups((1, 17), (17, 25))}
    panel = positions_figure(runs).axes[0]
    labels = ["1–16", "17–24", "17–32", "33–48"]
    assert [label.get_text() for label in panel.get_xticklabels()] == labels
    long, short = panel.lines
    assert list(long.get_xdata()) == [0, 2, 3]
    assert list(short.get_xdata()) == [0, 1]
    assert list(short.get_ydata()) == [group.bits_per_byte for group in runs["short"]]
