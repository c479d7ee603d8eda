"""Named directions and flat maps, against the formulas by hand and scikit-learn."""

import numpy as np
import pytest

from wordloom.errors import VectorError
from wordloom.vectors import Axis, KeyedVectors, UnknownWordError, project, word_map
from wordloom.vectors.use.projections import parse_axes


def unit(x):
    return x / np.linalg.norm(x)


def test_projections_by_hand(vectors):
    a, b, c, d, *words = vectors.index_to_key[:12]
    axes = [Axis((a,)), Axis((b,), (c,)), Axis((a, b), (c, d))]
    u = {word: unit(vectors[word].astype(np.float64)) for word in vectors.index_to_key[:12]}
    directions = [u[a], unit(u[b] - u[c]), unit((u[a] + u[b]) / 2 - (u[c] + u[d]) / 2)]
    expected = [[u[word] @ direction for direction in directions] for word in words]
    assert np.allclose(project(vectors, words, axes), expected, atol=1e-6)
    toward_itself = project(vectors, [a, b, c], [Axis((a,)), Axis((b,), (c,))])
    assert toward_itself[0, 0] == pytest.approx(1)
    assert toward_itself[1, 1] == pytest.approx(-toward_itself[2, 1])


def test_axes_as_people_write_them(vectors):
    a, b, c, d = vectors.index_to_key[:4]
    assert parse_axes(vectors, toward=[f"{a},{b}"]) == [Axis((a,)), Axis((b,))]
    assert parse_axes(vectors, toward=[a, f"{b}+{c}"]) == [Axis((a,)), Axis((b, c))]
    assert parse_axes(vectors, start=[f"{a}+{b}"], end=[f"{c}+{d}"]) == [Axis((c, d), (a, b))]
    both = parse_axes(vectors, toward=[d], start=[f"{a},{c}"], end=[b, d])
    assert both == [Axis((d,)), Axis((b,), (a,)), Axis((d,), (c,))]
    assert [axis.name for axis in both] == [d, f"{a} → {b}", f"{c} → {d}"]
    odd = KeyedVectors(["c++", "a,b", "x"], np.eye(3))
    assert parse_axes(odd, toward=["c++", "a,b"]) == [Axis(("c++",)), Axis(("a,b",))]


def test_mistaken_axes(vectors):
    a, b = vectors.index_to_key[:2]
    with pytest.raises(VectorError, match="1 axes have a start and 0 an end"):
        parse_axes(vectors, start=[a])
    with pytest.raises(VectorError, match="no axis is given"):
        parse_axes(vectors)
    with pytest.raises(VectorError, match="a word is missing"):
        parse_axes(vectors, toward=[f"{a},"])
    with pytest.raises(VectorError, match="has no direction: its sides are equal"):
        project(vectors, [a], [Axis((b,), (b,))])
    with pytest.raises(UnknownWordError):
        project(vectors, [a], [Axis(("not there",))])
    with pytest.raises(VectorError, match="there is no axis"):
        project(vectors, [a], [])


def test_principal_components_are_scikit_learns(vectors):
    decomposition = pytest.importorskip("sklearn.decomposition")
    made = word_map(vectors, vectors.index_to_key[:5], topn=6)
    units = np.stack([vectors.get_vector(word, norm=True) for word in made.words]).astype(np.float64)
    pca = decomposition.PCA(n_components=2, svd_solver="full").fit(units)
    expected = pca.transform(units)
    signs = np.sign((expected * made.points).sum(axis=0))
    assert np.allclose(made.points, expected * signs, atol=1e-9)
    assert made.explained == pytest.approx(pca.explained_variance_ratio_)


def test_who_stands_on_the_map(vectors):
    asked = vectors.index_to_key[10:14]
    made = word_map(vectors, [*asked, asked[0]], topn=9)
    assert made.words[:4] == made.asked == asked
    assert made.groups[:4].tolist() == [0, 1, 2, 3]
    assert len(set(made.words)) == len(made.words) == len(made.points)
    near = {word: dict(vectors.most_similar(word, topn=9)) for word in asked}
    assert {word: dict(nearest) for word, nearest in made.neighbours.items()} == near
    for word, group in zip(made.words[4:], made.groups[4:], strict=True):
        cosines = {place: near[a][word] for place, a in enumerate(asked) if word in near[a]}
        assert group == max(cosines, key=cosines.get)


def test_neighbours_stay_together_by_tsne():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(3, 20) * 5, 10, axis=0)
    clusters = KeyedVectors([f"w{i}" for i in range(30)], centres + rng.normal(size=(30, 20)) * 0.3)
    made = word_map(clusters, clusters.index_to_key, topn=0, method="tsne", seed=3)
    again = word_map(clusters, clusters.index_to_key, topn=0, method="tsne", seed=3)
    assert np.array_equal(made.points, again.points)
    assert made.explained is None
    distances = np.linalg.norm(made.points[:, None] - made.points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (distances.argmin(axis=1) // 10 == np.arange(30) // 10).all()


@pytest.mark.parametrize("n", [1, 2])
def test_few_words(vectors, n):
    made = word_map(vectors, vectors.index_to_key[:n], topn=0)
    assert made.points.shape == (n, 2)
    assert np.isfinite(made.points).all()
    assert np.allclose(made.points[:, 1], 0)


def test_mistaken_maps(vectors):
    with pytest.raises(VectorError, match="a map needs words"):
        word_map(vectors, [])
    with pytest.raises(VectorError, match=r"unknown method 'tsme'; did you mean 'tsne'\?"):
        word_map(vectors, vectors.index_to_key[:2], method="tsme")
    with pytest.raises(VectorError, match="t-SNE needs four words or more, not 2"):
        word_map(vectors, vectors.index_to_key[:2], topn=0, method="tsne")
    with pytest.raises(UnknownWordError):
        word_map(vectors, ["not there"])
