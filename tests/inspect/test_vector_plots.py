"""Pictures of words: valid files, names that can be read, and no trace left in matplotlib."""

import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.errors import VectorError, WordloomError
from wordloom.inspect.labels import leader_line, place_labels
from wordloom.vectors import KeyedVectors, word_map

matplotlib = pytest.importorskip("matplotlib", reason="drawing is the plots extra")


def words_around(n_asked, n_near, seed=0):
    """Words in clusters that lie one on another when flattened."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_asked, 1, 30))
    values = (centres + 0.25 * rng.normal(size=(n_asked, n_near + 1, 30))).reshape(-1, 30)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = {
        f"{i}" + "".join(rng.choice(letters, size=rng.integers(2, 12))): None for i in range(len(values))
    }
    return KeyedVectors(words, values.astype(np.float32))


def the_map(n_asked=5, n_near=10):
    vectors = words_around(n_asked, n_near)
    return word_map(vectors, vectors.index_to_key[:: n_near + 1], topn=n_near)


def boxes(figure):
    """(left, bottom, right, top) of each text on the panel, in pixels."""
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer).extents for text in figure.axes[0].texts]


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize(("asked", "near"), [(1, 5), (5, 10), (6, 20)])
def test_names_cover_neither_one_another_nor_a_point(asked, near):
    from wordloom.inspect.vector_plots import map_figure

    made = the_map(asked, near)
    figure = map_figure(made)
    panel = figure.axes[0]
    found = boxes(figure)
    assert [text.get_text() for text in panel.texts] == made.words
    assert not any(overlap(a, b) for a, b in combinations(found, 2))
    inside = panel.get_window_extent().extents
    assert all(box[0] >= inside[0] and box[1] >= inside[1] for box in found)
    assert all(box[2] <= inside[2] and box[3] <= inside[3] for box in found)
    at = panel.transData.transform(made.points)
    for box in found:
        covered = (at[:, 0] > box[0]) & (at[:, 0] < box[2]) & (at[:, 1] > box[1]) & (at[:, 1] < box[3])
        assert not covered.any()


def test_each_word_asked_about_has_a_colour_of_its_own_and_no_mark_hides_a_smaller_one():
    from wordloom.inspect.vector_plots import map_figure

    marks = [line for line in map_figure(the_map(10, 1)).axes[0].lines if line.get_marker() != "None"]
    asked = [line for line in marks if line.get_markersize() == 9]
    assert len({line.get_color() for line in asked}) == len(asked) == 10
    near = [line for line in marks if line.get_markersize() < 9]
    assert min(line.get_zorder() for line in near) > max(line.get_zorder() for line in asked)


def test_names_are_beside_their_points_where_there_is_room():
    from wordloom.inspect.vector_plots import map_figure

    made = the_map(4, 0)
    figure = map_figure(made)
    at = figure.axes[0].transData.transform(made.points)
    for point, box in zip(at, boxes(figure), strict=True):
        nearest = np.clip(point, box[:2], box[2:])
        assert np.linalg.norm(nearest - point) < 2 * (box[3] - box[1])


def test_points_on_one_another_still_have_names_apart():
    from wordloom.inspect.vector_plots import axes_figure

    values = np.full((12, 2), 0.3, dtype=np.float32)
    found = boxes(axes_figure([f"word{i}" for i in range(12)], values, ["here", "there"]))
    assert not any(overlap(a, b) for a, b in combinations(found, 2))


places = st.tuples(st.integers(0, 400), st.integers(0, 300))


@settings(max_examples=50, deadline=None)
@given(st.lists(places, min_size=1, max_size=25), st.integers(0, 10), st.booleans())
def test_placed_names_never_meet(points, seed, lines_may_cross):
    at = np.array(points, dtype=float)
    sizes = np.random.default_rng(seed).uniform((10, 8), (70, 12), size=(len(at), 2))
    radii = np.full(len(at), 3.0)
    area = (-80, -80, 480, 380)
    corners = place_labels(at, sizes, radii, area, lines_may_cross=lines_may_cross)
    if corners is None:
        assert len(points) > (8 if lines_may_cross else 4)  # there is room for a few wherever they lie
        return
    found = np.concatenate([corners, corners + sizes], axis=1)
    assert not any(overlap(a, b) for a, b in combinations(found, 2))
    assert (found[:, :2] >= area[:2]).all()
    assert (found[:, 2:] <= area[2:]).all()
    for box in found:
        inside = (at[:, 0] > box[0]) & (at[:, 0] < box[2]) & (at[:, 1] > box[1]) & (at[:, 1] < box[3])
        assert not inside.any()
    for i, (box, point) in enumerate(zip(found, at, strict=True)):
        line = leader_line(box, point, sizes[i, 1])
        if line is None or lines_may_cross:
            continue
        for spot in line[0] + np.linspace(0, 1, 12)[1:-1, None] * (line[1] - line[0]):
            others = np.delete(found, i, axis=0)
            assert not ((others[:, :2] < spot) & (spot < others[:, 2:])).all(axis=1).any()


def test_a_name_walled_in_by_the_others_is_placed_before_them():
    points = np.array([(36, 183), (0, 199), (20, 187), (9, 191), (26, 195)], dtype=float)
    sizes = np.random.default_rng(0).uniform((10, 8), (70, 12), size=(5, 2))
    area = (-80, -80, 480, 380)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("wordloom.inspect.labels._TRIALS", 1)
        assert place_labels(points, sizes, np.full(5, 3.0), area) is None
    corners = place_labels(points, sizes, np.full(5, 3.0), area)
    found = np.concatenate([corners, corners + sizes], axis=1)
    assert not any(overlap(a, b) for a, b in combinations(found, 2))


def test_no_room_is_told():
    points = np.zeros((3, 2))
    sizes = np.full((3, 2), 10.0)
    assert place_labels(points, sizes, np.ones(3), (-5, -5, 5, 5)) is None
    corners = place_labels(points, sizes, np.ones(3), (-500, -500, 500, 500))
    found = [(*corner, *(corner + 10)) for corner in corners]
    assert not any(overlap(a, b) for a, b in combinations(found, 2))
    assert place_labels(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0), (0, 0, 1, 1)).shape == (0, 2)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_files(suffix, tmp_path):
    from wordloom.inspect import draw_axes, draw_map

    made = the_map(2, 3)
    values = np.random.default_rng(0).uniform(-1, 1, size=(6, 3)).astype(np.float32)
    words = ["one", "two", " three", "$four$", "five_5", "six^6"]
    draws = {
        "map": lambda path: draw_map(made, path),
        "bars": lambda path: draw_axes(words, values[:, :1], ["small → large"], path),
        "plane": lambda path: draw_axes(words, values[:, :2], ["small", "large"], path),
        "table": lambda path: draw_axes(words, values, ["small", "$large$", "odd"], path),
    }
    for name, draw in draws.items():
        path, again = tmp_path / f"{name}.{suffix}", tmp_path / f"again.{suffix}"
        draw(path)
        draw(again)
        content = path.read_bytes()
        assert content == again.read_bytes()
        if suffix == "svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            assert content.startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[suffix])
            assert content.rstrip().endswith({"png": b"IEND\xaeB`\x82", "pdf": b"%%EOF"}[suffix])


def test_bars_stand_beside_their_words():
    from wordloom.inspect.vector_plots import axes_figure

    panel = axes_figure(["low", "high", "middle"], np.array([[-0.5], [0.5], [0.1]]), ["up"]).axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["low", "middle", "high"]
    assert [bar.get_width() for bar in panel.patches] == [-0.5, 0.1, 0.5]
    assert panel.get_xlabel() == "up"


def test_matplotlib_is_left_as_it_was(tmp_path):
    from wordloom.inspect import draw_map

    before = dict(matplotlib.rcParams)
    backend = (
        matplotlib.rcParams._get_backend_or_none()
        if hasattr(matplotlib.rcParams, "_get_backend_or_none")
        else None
    )
    matplotlib.rcParams["font.size"] = 31.0  # a user's style
    try:
        draw_map(the_map(2, 3), tmp_path / "styled.png")
        assert matplotlib.rcParams["font.size"] == 31.0
    finally:
        matplotlib.rcParams["font.size"] = before["font.size"]
    draw_map(the_map(2, 3), tmp_path / "plain.png")
    assert (tmp_path / "styled.png").read_bytes() == (tmp_path / "plain.png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    if backend is None and hasattr(matplotlib.rcParams, "_get_backend_or_none"):
        assert matplotlib.rcParams._get_backend_or_none() is None


def test_mistakes(tmp_path, monkeypatch):
    from wordloom.inspect import draw_map

    with pytest.raises(
        VectorError, match=r"has no ending that names a picture format; allowed: \.png, \.svg, \.pdf"
    ):
        draw_map(the_map(1, 2), tmp_path / "map.docx")
    (tmp_path / "file").write_text("")
    with pytest.raises(VectorError, match="cannot write"):
        draw_map(the_map(1, 2), tmp_path / "file" / "map.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(WordloomError, match=r"drawing needs matplotlib: pip install matplotlib"):
        draw_map(the_map(1, 2), tmp_path / "map.png")
    assert not (tmp_path / "map.png").exists()
