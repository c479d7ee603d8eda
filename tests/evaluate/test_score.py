"""Statistics that add up, intervals that cover, signatures that tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom import __version__
from wordloom.evaluate import RatioStatistics, Score, Scores, signature
from wordloom.evaluate.score import MIN_UNITS, share_interval

units = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), min_size=1, max_size=60)


@given(units, st.data())
def test_statistics_of_parts_add_up(pairs, data):
    x, y = np.array(pairs).T
    cut = data.draw(st.integers(0, len(x)))
    whole = RatioStatistics.of(x, y)
    parts = RatioStatistics.of(x[:cut], y[:cut]) + RatioStatistics.of(x[cut:], y[cut:])
    assert parts.units == whole.units
    assert parts.ratio == pytest.approx(whole.ratio)
    assert (parts.interval() is None) == (whole.interval() is None) == (len(x) < MIN_UNITS)
    if whole.interval() is not None:
        assert parts.interval() == pytest.approx(whole.interval(), rel=1e-6, abs=1e-6)


def test_the_ratio_is_of_sums_not_a_mean_of_ratios():
    statistics = RatioStatistics.of(np.array([10.0, 1.0]), np.array([100.0, 1.0]))
    assert statistics.ratio == 11 / 101


def test_the_interval_is_the_textbooks():
    x, y = np.arange(1.0, 31.0), np.full(30, 2.0)
    low, high = RatioStatistics.of(x, y).interval()
    # with equal denominators it is the interval of a mean: mean +- 1.96 s / sqrt(n)
    mean, error = x.mean() / 2, x.std(ddof=1) / 2 / np.sqrt(30)
    assert (low, high) == pytest.approx((mean - 1.959964 * error, mean + 1.959964 * error), rel=1e-6)


def test_intervals_cover_the_truth_as_often_as_they_say():
    """2,000 corpora of 40 documents whose lengths vary and whose nats follow them with noise."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        y = rng.integers(20, 200, 40).astype(float)
        x = y * rng.normal(3.0, 0.5, 40)
        low, high = RatioStatistics.of(x, y).interval()
        covered += low <= 3.0 <= high
    assert 0.92 < covered / 2000 < 0.965


def test_a_shares_interval_is_wilsons():
    # Wilson's interval as Newcombe 1998 (Statistics in Medicine 17:857) tabulates it
    for hits, n, low, high in [
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)
    ]:  # fmt: skip
        assert share_interval(hits, n) == pytest.approx((low, high), abs=5e-5)
    assert share_interval(20, 20) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)


def test_signature_and_json():
    signed = signature("bits_per_byte", tok="byte-258-abcdef", window=256)
    assert signed == f"bits_per_byte|tok:byte-258-abcdef|window:256|v:{__version__}"
    score = Score("bits_per_byte", 1.5, (1.25, 1.75), signed)
    assert str(score) == f"bits_per_byte 1.5000 [1.2500, 1.7500] {signed}"
    lost = Score("bits_per_byte", None, None, signed, "1 of 1 documents cannot be had back")
    assert str(lost).startswith("bits_per_byte undefined bits_per_byte|")
    scores = Scores((score,), {"documents": 1}, ("so it is",))
    assert scores["bits_per_byte"] is score
    assert list(scores) == ["bits_per_byte"]
    assert json.loads(json.dumps(scores.as_dict())) == {
        "scores": [{"name": "bits_per_byte", "value": 1.5, "interval": [1.25, 1.75], "signature": signed}],
        "counts": {"documents": 1},
        "notes": ["so it is"],
    }
    assert lost.as_dict()["note"] == "1 of 1 documents cannot be had back"
    with pytest.raises(KeyError):
        scores["loss"]
