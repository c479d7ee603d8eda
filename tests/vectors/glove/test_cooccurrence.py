"""Counts are a dictionary's, in whatever memory; the order is a permutation that the seed alone decides."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vectors.made_shards import make_shards, zipf_documents

from wordloom.errors import VectorError
from wordloom.vectors import Cooccurrences, count_cooccurrences


def dictionary(documents, *, window, symmetric=True, distance_weighting=True):
    """(i, j) -> X_ij by the definition: for each word, each word before it in the window, and back."""
    counts = {}
    for document in documents:
        for place, i in enumerate(np.asarray(document).tolist()):
            for distance in range(1, min(window, place) + 1):
                j, weight = int(document[place - distance]), 1 / distance if distance_weighting else 1.0
                counts[i, j] = counts.get((i, j), 0.0) + weight
                if symmetric:
                    counts[j, i] = counts.get((j, i), 0.0) + weight
    return counts


def agree(found: Cooccurrences, expected):
    pairs = [(int(i), int(j)) for i, j in zip(found.records["i"], found.records["j"], strict=True)]
    assert len(set(pairs)) == len(pairs) == len(found)
    assert set(pairs) == set(expected)
    np.testing.assert_allclose(found.records["x"], [expected[pair] for pair in pairs], rtol=1.2e-7)


@pytest.fixture(scope="module")
def documents():
    return zipf_documents(3000, 50)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, documents):
    return make_shards(tmp_path_factory.mktemp("shards"), documents, 50)


def least(shards, cache, **how) -> float:
    """The least memory that counting asks for."""
    with pytest.raises(VectorError, match=r"give .* or more") as refused:
        count_cooccurrences(shards, memory_mb=1e-4, cache=cache, **how)
    return float(str(refused.value).split("give ")[1].split()[0])


# -- counts --------------------------------------------------------------------------------------------


def test_a_sentence_by_hand(tmp_path):
    """a b a c, window 2: b and c stand a word from an a each, b two words from c."""
    found = count_cooccurrences(make_shards(tmp_path, [[0, 1, 0, 2]], 3), window=2, cache=tmp_path)
    counts = {(int(i), int(j)): float(x) for i, j, x in found.records}
    assert counts == {
        (0, 1): 2.0, (1, 0): 2.0,
        (0, 0): 1.0,  # two words apart, and counted from either side: 1/2 + 1/2
        (0, 2): 1.0, (2, 0): 1.0,
        (1, 2): 0.5, (2, 1): 0.5,
    }  # fmt: skip


def test_of_an_asymmetric_window_the_context_is_on_the_left(tmp_path):
    found = count_cooccurrences(
        make_shards(tmp_path, [[0, 1, 2]], 3), window=2, symmetric=False, cache=tmp_path
    )
    assert {(int(i), int(j)): float(x) for i, j, x in found.records} == {(1, 0): 1, (2, 1): 1, (2, 0): 0.5}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=30), min_size=1, max_size=12),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.03, 1]),
)
def test_counts_are_a_dictionarys(documents, window, symmetric, weigh, memory_mb):
    """Whatever the documents' borders, the window and its sides, the weights, and the memory."""
    how = {"window": window, "symmetric": symmetric, "distance_weighting": weigh}
    expected = dictionary(documents, **how)
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder), documents, 12)
        if not expected:
            with pytest.raises(VectorError, match="no two words of the corpus co-occur"):
                count_cooccurrences(shards, memory_mb=memory_mb, workers=1, cache=folder, **how)
            return
        agree(count_cooccurrences(shards, memory_mb=memory_mb, workers=1, cache=folder, **how), expected)


def test_little_memory_means_many_runs_and_the_same_records(tmp_path, shards, documents):
    """Portions, runs, piles on disk and piles of piles: not a bit is different."""
    whole = count_cooccurrences(shards, window=7, cache=tmp_path / "whole")
    assert whole.report.runs == 1
    assert whole.report.spilled == 0
    agree(whole, dictionary(documents, window=7))
    small = least(shards, tmp_path, window=7, workers=1)
    little = count_cooccurrences(shards, window=7, workers=1, memory_mb=small, cache=tmp_path / "little")
    assert little.report.runs > 10
    assert little.report.spilled > 12 * len(little)
    assert np.array_equal(little.records, whole.records)
    assert little.fingerprint == whole.fingerprint


_GROWTH = """
import sys
import psutil
from wordloom.data import TokenShards
from wordloom.vectors import count_cooccurrences

def size():
    return psutil.Process().memory_info().rss / 2**20

small, large, cache, memory = sys.argv[1:]
count_cooccurrences(TokenShards(small), memory_mb=3, workers=2, cache=cache)  # compiles
before, seen = size(), []
found = count_cooccurrences(
    TokenShards(large), memory_mb=float(memory), workers=2, cache=cache,
    progress=lambda _: seen.append(size()),
)
print(max(seen) - before, found.report.runs, len(found))
"""


def test_memory_is_bounded(tmp_path):
    """What the process grows by stays near what it was given, which is a fraction of what it handles."""
    rng = np.random.default_rng(0)
    large = make_shards(tmp_path, rng.integers(0, 2000, size=(100, 10_000)), 2000)
    small = make_shards(tmp_path, rng.integers(0, 2000, size=(20, 1000)), 2000)

    def run(memory_mb):
        given = [small.folder, large.folder, tmp_path / f"{memory_mb}", memory_mb]
        done = subprocess.run(
            [sys.executable, "-c", _GROWTH, *map(str, given)], capture_output=True, text=True, check=True
        )
        growth, runs, records = done.stdout.split()
        return float(growth), int(runs), int(records)

    growth, runs, records = run(8)
    assert 12 * records > 40 * 2**20
    assert runs > 1
    assert growth < 2 * 8
    assert run(1024)[0] > 80  # what bounds it is the setting


def test_piles_that_do_not_fit_are_dealt_again(tmp_path, shards, monkeypatch):
    monkeypatch.setattr("wordloom.vectors.glove.cooccurrence_order._MOST_BITS", 2)
    small = least(shards, tmp_path, workers=1)
    again = count_cooccurrences(shards, memory_mb=small, workers=1, cache=tmp_path / "again")
    assert again.report.spilled > 24 * len(again)  # through two generations of piles, or more
    whole = count_cooccurrences(shards, cache=tmp_path / "whole")
    assert np.array_equal(again.records, whole.records)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_records_are_the_same_for_any_number_of_threads(tmp_path, shards, workers):
    found = count_cooccurrences(shards, workers=workers, memory_mb=0.2, cache=tmp_path / "few")
    assert found.report.runs > 1
    expected = count_cooccurrences(shards, workers=3, cache=tmp_path / "three")
    assert np.array_equal(found.records, expected.records)


def test_a_large_vocabulary_and_ids_of_32_bits(tmp_path):
    """Columns in many words of the marks, and far apart."""
    V = 70_000
    documents = [np.random.default_rng(n).integers(0, V, size=60) for n in range(20)]
    documents.append(np.array([0, V - 1, 0, 63, 64, 4095, 4096, V - 1]))
    shards = make_shards(tmp_path, documents, V)
    assert shards.tokens().dtype == np.uint32
    agree(count_cooccurrences(shards, cache=tmp_path), dictionary(documents, window=15))


def test_sums_that_are_large_are_exact(tmp_path):
    """Half a million times the same pair: float32 sums would have stopped growing evenly long before."""
    ids = np.tile([0, 1], 500_000)
    found = count_cooccurrences(make_shards(tmp_path, [ids], 2), window=1, cache=tmp_path)
    counts = {(int(i), int(j)): float(x) for i, j, x in found.records}
    assert counts == {(0, 1): 999_999.0, (1, 0): 999_999.0}


# -- order ---------------------------------------------------------------------------------------------


def test_the_order_is_the_seeds(tmp_path, shards):
    one, same, two = (
        count_cooccurrences(shards, seed=seed, cache=tmp_path / str(n)) for n, seed in enumerate((1, 1, 2))
    )
    assert np.array_equal(one.records, same.records)
    assert not np.array_equal(one.records, two.records)
    assert np.array_equal(np.sort(one.records), np.sort(two.records))


def test_the_order_is_random(tmp_path):
    """Rows, columns and counts are spread evenly over the file, and neighbours have nothing in common."""
    documents = zipf_documents(500, 200, longest=100)
    records = count_cooccurrences(make_shards(tmp_path, documents, 200), cache=tmp_path).records
    n = len(records)
    place = np.arange(n) / n
    for name in ("i", "j", "x"):
        values = records[name].astype(np.float64)
        ranks = values.argsort(kind="stable").argsort() / n
        # under independence both are normal with deviation 1 / sqrt(n)
        assert abs(np.corrcoef(place, ranks)[0, 1]) * np.sqrt(n) < 4
        assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) * np.sqrt(n) < 4
    quarters = np.array([np.bincount(part["i"] % 16, minlength=16) for part in np.array_split(records, 4)])
    expected = quarters.sum(axis=0) / 4
    chi2 = ((quarters - expected) ** 2 / expected).sum()
    assert abs(chi2 - 45) < 5 * np.sqrt(90)


# -- files ---------------------------------------------------------------------------------------------


def test_they_are_counted_once(tmp_path, shards):
    first = count_cooccurrences(shards, cache=tmp_path)
    again = count_cooccurrences(shards, cache=tmp_path, memory_mb=50, workers=1)
    assert (first.reused, again.reused) == (False, True)
    assert again.folder == first.folder
    assert again.report == first.report
    for other in ({"window": 3}, {"symmetric": False}, {"distance_weighting": False}, {"seed": 5}):
        found = count_cooccurrences(shards, cache=tmp_path, **other)
        assert not found.reused
        assert all(getattr(found, name) == value for name, value in other.items())
    assert sorted(path.name for path in first.folder.iterdir()) == ["meta.json", "records.bin"]


def test_of_two_runs_at_once_one_counts(tmp_path, shards, caplog):
    """The second waits, says so, and takes the first one's result."""
    release, found = threading.Event(), []

    def hold(progress):
        if progress.stage == "shuffle":
            assert release.wait(60)

    def count(**how):
        found.append(count_cooccurrences(shards, cache=tmp_path, **how))

    first = threading.Thread(target=count, kwargs={"progress": hold})
    first.start()
    while not list(tmp_path.glob("cooccurrences/.*.tmp/records.bin")):
        time.sleep(0.01)
    second = threading.Thread(target=count)
    second.start()
    while "another run is counting" not in caplog.text:
        time.sleep(0.01)
    release.set()
    first.join()
    second.join()
    assert [one.reused for one in found] in ([False, True], [True, False])
    assert np.array_equal(found[0].records, found[1].records)


def test_damaged_ones_are_refused_and_counted_again(tmp_path, shards):
    first = count_cooccurrences(shards, cache=tmp_path)
    expected = np.array(first.records)
    path = first.folder / "records.bin"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(VectorError, match=r"records.bin' is damaged: it has .* bytes instead of"):
        Cooccurrences(first.folder)
    again = count_cooccurrences(shards, cache=tmp_path)
    assert not again.reused
    assert np.array_equal(again.records, expected)
    meta = json.loads((first.folder / "meta.json").read_text())
    (first.folder / "meta.json").write_text(json.dumps({**meta, "version": 0}))
    with pytest.raises(VectorError, match="of version 0, not 2; count them again"):
        Cooccurrences(first.folder)
    with pytest.raises(VectorError, match="holds no co-occurrences"):
        Cooccurrences(tmp_path)


@pytest.mark.parametrize("stage", ["count", "merge", "shuffle"])
def test_stopping_leaves_nothing_behind(tmp_path, shards, stage):
    """Ctrl-C in whatever stage: temporary files are gone, and nothing can be taken for a result."""
    small = least(shards, tmp_path, workers=2)
    seen = set()

    def interrupt(progress):
        seen.add(progress.stage)
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_cooccurrences(shards, memory_mb=small, workers=2, cache=tmp_path, progress=interrupt)
    assert stage in seen
    assert [path.name for path in (tmp_path / "cooccurrences").iterdir() if path.suffix != ".lock"] == []
    assert len(count_cooccurrences(shards, cache=tmp_path)) > 0


def test_a_full_disk_is_one_clear_line(tmp_path, shards, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(VectorError, match=r"cannot write co-occurrences to .*No space left on device"):
        count_cooccurrences(shards, cache=tmp_path)
    assert [path.name for path in (tmp_path / "cooccurrences").iterdir() if path.suffix != ".lock"] == []


def test_progress_goes_up_to_all(tmp_path, shards):
    told = []
    found = count_cooccurrences(shards, memory_mb=0.2, cache=tmp_path, progress=told.append)
    assert list(dict.fromkeys(step.stage for step in told)) == ["count", "merge", "shuffle"]
    for stage, total in (("count", len(shards)), ("merge", 50), ("shuffle", len(found))):
        done = [step.done for step in told if step.stage == stage]
        assert done == sorted(done)
        assert done[-1] == total
        assert {step.total for step in told if step.stage == stage} == {total}
    assert found.report.tokens == len(shards)
    assert found.report.records == len(found)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"window": 0}, "window 0 holds no words"),
        ({"workers": 0}, "workers 0 is not allowed"),
        ({"memory_mb": 0}, "memory_mb 0 is not an amount of memory"),
        ({"memory_mb": float("nan")}, "memory_mb nan is not an amount of memory"),
        ({"memory_mb": 0.001}, "memory_mb 0.001 cannot hold a row of counts for 50 words; give 0.0"),
    ],
)
def test_settings_out_of_range(tmp_path, shards, how, says):
    with pytest.raises(VectorError, match=says):
        count_cooccurrences(shards, cache=tmp_path, **how)


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    shards = make_shards(tmp_path, [[0, 1, 7, 2]], 8)
    shards.vocab_size = 3  # opening looks through a large file in parts, and may miss one
    with pytest.raises(VectorError, match="is damaged: it holds the id 7 of 3 words; prepare it again"):
        count_cooccurrences(shards, cache=tmp_path)


def test_documents_of_one_word_hold_no_pairs(tmp_path):
    with pytest.raises(VectorError, match="no two words of the corpus co-occur"):
        count_cooccurrences(make_shards(tmp_path, [[0], [1], [0]], 2), cache=tmp_path)
    with pytest.raises(VectorError, match="no two words of the corpus co-occur"):
        count_cooccurrences(
            make_shards(tmp_path, [[0], [1], [0]] * 5000, 2), memory_mb=0.02, workers=1, cache=tmp_path
        )
