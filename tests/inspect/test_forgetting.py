"""The picture of what runs have forgotten: a scale that tells hundredths of a nat and whole ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wordloom.inspect.score_plots import forgetting_figure
from wordloom.run.sweep.forgetting import REMEDIES, Forgetting

pytest.importorskip("matplotlib")


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
    runs.append(run(0.5, 4.2, before=9.0, remedy=4))  # began afresh, beside the same checkpoint
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
    assert "checkpoint before training: 4.000" in [text.get_text() for text in panel.get_legend().get_texts()]


def test_from_several_checkpoints_it_is_the_loss() -> None:
    (panel,) = forgetting_figure([run(0.1, 4.5), run(0.2, 3.5, before=3.0)], REMEDIES).axes
    assert panel.get_ylabel() == "old task: loss (nats), lower is better"
    assert panel.get_yscale() == "linear"


def test_a_run_that_forgot_nothing_is_drawn() -> None:
    (panel,) = forgetting_figure([run(0.1, 4.0)], REMEDIES).axes
    low, high = panel.get_ylim()
    assert low < 0.0 < high
