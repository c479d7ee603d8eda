"""The picture of scores by the length of the source."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from wordloom.cli.inspect.translation import print_lengths
from wordloom.evaluate import bleu_by_length
from wordloom.inspect.score_plots import lengths_figure

pytest.importorskip("matplotlib", reason="drawing is the plots extra")


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
    print_lengths(Console(file=said, width=100), runs)
    [row] = (line for line in said.getvalue().splitlines() if line.split()[:1] == ["1–3"])
    assert row.split()[:3] == ["1–3", "20", "–"]
    assert "note: perfect on 1–3 words: bleu is 0 by definition" in said.getvalue()
    label = panel.get_xlabel()
    assert label.startswith("source length in words (n sentences)")
    assert "perfect: no BLEU for 1–3 words" in label
    assert "bad" not in label
