"""Texts in clusters: scikit-learn's own answers on made-up blobs, words by their formula, what is refused."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wordloom.errors import DataError, WordloomError
from wordloom.inspect.vector_plots import cluster_figure, draw_clusters
from wordloom.run import cluster_texts
from wordloom.run.models.clusters import top_words

cluster = pytest.importorskip("sklearn.cluster")
metrics = pytest.importorskip("sklearn.metrics")

SIZES = (9, 14, 5)
TOPICS = ("fish in the sea", "bank of money", "trees and the wood")
OF = np.repeat([0, 1, 2], SIZES)
TEXTS = [f"{TOPICS[topic]}, text {i}" for i, topic in enumerate(OF)]
LABELS = [f"t{topic}" for topic in OF]


@pytest.fixture(scope="module")
def blobs() -> NDArray[np.float32]:
    """[28, 6]: three blobs, the ninth text astray."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 6))[OF] * 3 + rng.normal(size=(len(OF), 6)) * 0.3
    x[8] = x[20]
    return x.astype(np.float32)


@pytest.mark.parametrize("method", ["kmeans", "agglomerative"])
def test_clusters_are_scikit_learns(blobs: NDArray[np.float32], method: Any) -> None:
    found = cluster_texts(TEXTS, blobs, 3, method=method, seed=4, labels=LABELS, n_texts=2)
    theirs = (
        cluster.KMeans(3, n_init=10, random_state=4)
        if method == "kmeans"
        else cluster.AgglomerativeClustering(3)
    ).fit_predict(blobs.astype(np.float64))
    assert metrics.adjusted_rand_score(theirs, found.assigned) == 1.0  # but for the numbers
    assert found.sizes.tolist() == [15, 8, 5]
    assert found.assigned[[0, 8, 9, 27]].tolist() == [1, 0, 0, 2]
    for k in range(3):
        members = blobs[found.assigned == k].astype(np.float64)
        np.testing.assert_allclose(found.centres[k], members.mean(0))
        distances = np.linalg.norm(members - members.mean(0), axis=1)
        np.testing.assert_allclose(found.distances[found.assigned == k], distances)
        assert found.distances[found.nearest[k]].tolist() == sorted(distances)[:2]
    assert found.silhouette == pytest.approx(metrics.silhouette_score(blobs, theirs))
    assert found.compared == 28
    assert found.nmi == pytest.approx(metrics.normalized_mutual_info_score(LABELS, theirs))
    assert found.adjusted_rand == pytest.approx(metrics.adjusted_rand_score(LABELS, theirs))
    assert 0.5 < found.nmi < 1
    assert found.labels == [{"t1": 14, "t0": 1}, {"t0": 8}, {"t2": 5}]
    again = cluster_texts(TEXTS, blobs, 3, method=method, seed=4)
    assert np.array_equal(found.assigned, again.assigned)
    assert (again.nmi, again.adjusted_rand, again.labels) == (None, None, [])


def test_every_text_may_be_a_cluster(blobs: NDArray[np.float32]) -> None:
    found = cluster_texts(TEXTS[:8], blobs[:8], 8)
    assert found.assigned.tolist() == list(range(8))  # equal sizes: in the order of the texts
    assert found.silhouette is None


def test_words_are_those_that_the_others_lack(blobs: NDArray[np.float32]) -> None:
    found = cluster_texts(TEXTS, blobs, 3, n_words=3)
    assert {word for word, _ in found.words[0]} == {"bank", "of", "money"}
    # "the" is as frequent in the last as "trees", and is in the second too
    assert {word for word, _ in found.words[2]} == {"trees", "and", "wood"}
    # of two clusters by the formula: counts 3 of 4 and 1 of 5 words, the prior being all 4 of 9
    made = top_words(["x x x y", "x y Y, y z!"], np.array([0, 1]))
    ours, theirs = 3 + 4, 1 + 4
    odds = math.log(ours / (4 + 9 - ours)) - math.log(theirs / (5 + 9 - theirs))
    assert made[0] == [("x", pytest.approx(odds / math.sqrt(1 / ours + 1 / theirs)))]
    assert [word for word, _ in made[1]] == ["y"]  # z is there once
    assert top_words(["...", "!"], np.array([0, 1])) == [[], []]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 1}, "clusters: 1 is too few; give 2 or more"),
        ({"k": 29}, "28 texts cannot be 29 clusters; give 28 or fewer"),
        ({"texts": ["a"], "k": 2}, "1 text(s) cannot be grouped; give 2 or more"),
        ({"k": 28}, "only 27 different vectors; give fewer than 28 clusters"),
        ({"texts": ["a", " ", *TEXTS[2:]]}, "text 2: the text is empty"),
        ({"texts": ["\n"] * 28}, "text 1: the text is empty, and so are 27 more"),
        ({"vectors": np.full((28, 2), np.nan)}, "28 vectors are not finite, the first that of text 1"),
        ({"vectors": np.zeros((27, 2))}, "vectors of shape [27, 2] for 28 texts"),
        ({"labels": ["a"]}, "1 labels for 28 texts"),
        ({"method": "k-means"}, "unknown clustering 'k-means'; did you mean 'kmeans'?"),
        (
            {"texts": ["a"] * 20_001, "method": "agglomerative"},
            "takes 20,000 texts at most, not 20,001; take kmeans",
        ),
    ],
)
def test_mistakes(blobs: NDArray[np.float32], given: dict[str, Any], message: str) -> None:
    with pytest.raises(WordloomError, match=re.escape(message)):
        cluster_texts(**{"texts": TEXTS, "vectors": blobs, "k": 3, **given})


def test_without_scikit_learn(blobs: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(WordloomError, match=r"need scikit-learn: pip install scikit-learn"):
        cluster_texts(TEXTS, blobs, 3)


def test_a_picture_has_every_text_and_a_line_for_every_cluster(
    blobs: NDArray[np.float32], tmp_path: Any
) -> None:
    pytest.importorskip("matplotlib")
    found = cluster_texts(TEXTS, blobs, 3)
    words = [[word for word, _ in some] for some in found.words]
    (panel,) = cluster_figure(blobs, found.assigned, words).axes
    shown = [line.get_xydata() for line in panel.lines[:3]]
    assert [len(points) for points in shown] == [15, 8, 5]
    x = blobs - blobs.mean(0)
    variance = np.linalg.svd(x, compute_uv=False) ** 2
    assert np.concatenate(shown).var(0) * 28 == pytest.approx(variance[:2], rel=1e-4)
    assert panel.get_xlabel() == (
        f"first principal component ({variance[0] / variance.sum():.0%} of the variance)"
    )
    lines = [text.get_text() for text in panel.get_legend().get_texts()]
    assert [line.split(":")[0] for line in lines] == ["1, 15", "2, 8", "3, 5"]
    assert [text.get_text() for text in panel.texts] == ["1", "2", "3"]
    draw_clusters(blobs, found.assigned, words, tmp_path / "c.svg")
    assert (tmp_path / "c.svg").stat().st_size > 1000
    (panel,) = cluster_figure(blobs, found.assigned, words, plane="tsne").axes
    assert panel.get_xlabel().startswith("t-SNE")
    with pytest.raises(DataError, match="t-SNE takes 4 to 5,000 texts, not 3"):
        draw_clusters(blobs[:3], found.assigned[:3], words, tmp_path / "t.png", plane="tsne")


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_vectors_that_differ_by_rounding_are_no_clusters() -> None:
    x = np.repeat(np.random.default_rng(0).normal(size=(3, 384)), 10, axis=0).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for row in range(len(x)):
        x[row, row % 7] = np.nextafter(x[row, row % 7], np.float32(2))
    with pytest.raises(DataError, match=r"only \d vectors differ by more than rounding"):
        cluster_texts([f"text {i}" for i in range(30)], x, 8, seed=0)
