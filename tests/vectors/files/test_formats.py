"""Files of vectors: gensim reads ours, we read gensim's, and what is broken is one clear error."""

import gzip
import json
import os
import struct
import tempfile
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.vectors.conftest import as_gensim

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, load_vectors, load_word2vec, save_vectors, save_word2vec

ODD = [
    "naïve",
    "日本語",
    "🙂",
    "\u00a0",
    "don’t",
    "a\u0301",
    "1999",
    "-3.5",
    "nan",
    ":",
    "#",
    "\u2028",
    "</s>",
    "a\tb",
    "\r",
]
# What gensim and we both keep: no space, no line break.  Gensim strips line breaks before words in binaries.
# What we take for a byte order mark or a column of its own where a file begins is in test_word2vec_text.
words = st.lists(
    st.sampled_from(ODD)
    | st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters=" \n\t\ufeff"), min_size=1, max_size=8
    ),
    min_size=1,
    max_size=6,
    unique=True,
)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def keyed(draw):
    found = draw(words)
    dim = draw(st.integers(1, 5))
    return KeyedVectors(found, draw(arrays(np.float32, (len(found), dim), elements=numbers)))


def equal(a, b):
    assert a.index_to_key == b.index_to_key
    assert a.vectors.tobytes() == b.vectors.astype("<f4").tobytes()  # -0.0 too


# -- round trips ---------------------------------------------------------------------------------------


@given(keyed(), st.sampled_from(["v.txt", "v.txt.gz", "v.bin", "v.bin.gz"]))
@settings(deadline=None)
def test_what_is_written_is_read(vectors, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        save_word2vec(vectors, path)
        equal(load_word2vec(path, binary=".bin" in name), vectors)
        assert [file.name for file in Path(folder).iterdir()] == [name]
        equal(
            load_word2vec(path, binary=".bin" in name, limit=1),
            load_word2vec(path, limit=1, binary=".bin" in name),
        )
        if ".txt" in name:
            save_word2vec(vectors, path, header=False)
            equal(load_word2vec(path), vectors)


@given(keyed(), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=50)
def test_gensim_reads_ours(vectors, binary, header):
    models = pytest.importorskip("gensim.models")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v")
        save_word2vec(vectors, path, binary=binary, header=header or binary)
        theirs = models.KeyedVectors.load_word2vec_format(
            str(path), binary=binary, no_header=not (header or binary)
        )
        equal(vectors, theirs)


@given(keyed(), st.booleans(), st.booleans(), st.sampled_from(["v", "v.gz"]))
@settings(deadline=None, max_examples=50)
def test_we_read_gensims(vectors, binary, header, name):
    theirs = as_gensim(vectors)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        theirs.save_word2vec_format(str(path), binary=binary, write_header=header or binary)
        equal(load_word2vec(path, binary=binary), vectors)


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "glove.txt", "v.txt.gz", "v.bin.gz"])
def test_what_a_file_is_is_seen_from_it(vectors, tmp_path, name):
    save_word2vec(vectors, tmp_path / name, header="glove" not in name)
    (tmp_path / name).rename(tmp_path / "unnamed")
    equal(load_word2vec(tmp_path / "unnamed"), vectors)
    equal(load_vectors(tmp_path / "unnamed"), vectors)
    first = load_word2vec(tmp_path / "unnamed", limit=7)
    assert first.index_to_key == vectors.index_to_key[:7]
    assert len(load_word2vec(tmp_path / "unnamed", limit=10_000)) == len(vectors)


@given(keyed(), st.booleans())
@settings(deadline=None)
def test_our_folder_keeps_everything(vectors, counted):
    counts = np.arange(len(vectors), 0, -1) if counted else None
    vectors = KeyedVectors(vectors.index_to_key, vectors.vectors, counts=counts)
    with tempfile.TemporaryDirectory() as folder:
        save_vectors(vectors, folder, corpus="a book")
        read = load_vectors(folder)
        equal(read, vectors)
        assert (read.counts is None) == (counts is None)
        assert counts is None or read.counts.tolist() == counts.tolist()
        assert json.loads(Path(folder, "vectors.json").read_text())["corpus"] == "a book"


def test_our_folder_is_mapped_not_read(vectors, tmp_path):
    save_vectors(vectors, tmp_path)
    mapped = load_vectors(tmp_path).vectors
    assert not mapped.flags.owndata
    assert not mapped.flags.writeable
    save_vectors(load_vectors(tmp_path), tmp_path)  # over the very file that is mapped
    equal(load_vectors(tmp_path), vectors)


def test_saving_again_replaces_what_was_there(vectors, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    save_vectors(KeyedVectors(["a"], np.ones((1, 2), np.float32), counts=np.array([4])), tmp_path)
    save_vectors(vectors, tmp_path)
    equal(load_vectors(tmp_path), vectors)
    assert load_vectors(tmp_path).counts is None
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_what_was_there(vectors, tmp_path, monkeypatch):
    save_vectors(vectors, tmp_path / "folder")
    save_word2vec(vectors, tmp_path / "v.txt")
    before = sorted(tmp_path.rglob("*"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    other = KeyedVectors(["a"], np.ones((1, 2), np.float32))
    with pytest.raises(VectorError, match=r"cannot write to .*: No space left on device"):
        save_vectors(other, tmp_path / "folder")
    with pytest.raises(VectorError, match=r"cannot write to .*: No space left on device"):
        save_word2vec(other, tmp_path / "v.txt")
    assert sorted(tmp_path.rglob("*")) == before
    equal(load_vectors(tmp_path / "folder"), vectors)
    equal(load_vectors(tmp_path / "v.txt"), vectors)


@pytest.mark.parametrize("name", ["vectors.npy", "words.txt", "vectors.json"])
def test_a_save_cut_between_two_files_leaves_no_mixture(vectors, tmp_path, monkeypatch, name):
    save_vectors(vectors, tmp_path)
    replace = os.replace

    def stop(source, target):
        if Path(target) == tmp_path / name:
            raise KeyboardInterrupt
        replace(source, target)

    turned = KeyedVectors(vectors.index_to_key[::-1], vectors.vectors)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            save_vectors(turned, tmp_path)
    equal(load_vectors(tmp_path), turned)
    assert not list(tmp_path.glob(".*"))


def test_equal_vectors_make_equal_files(vectors, tmp_path):
    save_word2vec(vectors, tmp_path / "a.txt.gz")
    save_word2vec(vectors, tmp_path / "b.txt.gz")
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()
    assert (tmp_path / "a.txt.gz").read_bytes()[4:8] == bytes(4)  # the time of writing is not in it


def test_reading_tells_how_far_it_is(tmp_path):
    many = KeyedVectors(map(str, range(25_000)), np.ones((25_000, 1), np.float32))
    for name in ("v.txt", "v.bin"):
        told = []
        save_word2vec(many, tmp_path / name)
        load_word2vec(tmp_path / name, progress=lambda *far: told.append(far))  # noqa: B023
        assert told == [(10_000, 25_000), (20_000, 25_000)]


# -- what is broken ------------------------------------------------------------------------------------

ROW = struct.pack("<2f", 1, 2)
BAD = {
    "wrong dimension": (b"3 2\na 1 2\nb 3\nc 4 5\n", ":3: 1 numbers follow the word, and there must be 2"),
    "wrong dimension, more": (b"a 1 2\nb 3 4 5\n", ":2: 3 numbers follow the word, and there must be 2"),
    "no numbers": (b"2 2\na 1 2\nb\n", ":3: 0 numbers follow the word, and there must be 2"),
    "a word alone": (b"hello\n", ":1: a word without numbers"),
    "no number": (b"a 1 2\nb 3 x4\n", ":2: 'x4' is not a number"),
    "no number, first line": (b"2 2\na 1 zwei\nb 3 4\n", ":2: 'zwei' is not a number"),
    "not finite": (b"a 1 2\nb nan 4\n", r"'b' \(word number 2\) is not finite"),
    "too large": (b"a 1 2\nb 1e50 4\n", r"'b' \(word number 2\) is not finite"),
    "not finite, binary": (b"1 2\na " + struct.pack("<2f", 1, float("inf")), "'a' .* is not finite"),
    "truncated text": (b"3 2\na 1 2\nb 3 4\n", "truncated: its first line promises 3 words, 2 are there"),
    "text too long": (b"1 2\na 1 2\nb 3 4\n", ":3: the file has more than the 1 words"),
    "header alone": (b"3 2\n", "truncated: its first line promises 3 words, 0 are there"),
    "truncated binary": (b"2 2\na " + ROW + b"\nb " + ROW[:5], "truncated"),
    "truncated binary, in the last vector": (
        b"2 2\nword " + ROW + b"\nb " + ROW[:7],
        "truncated or damaged at word 2",
    ),
    "binary too long": (
        b"1 2\na " + ROW + b"\nb " + ROW,
        "has 11 bytes after the 1 words of 2 components",
    ),
    "binary of huge promise": (b"999999999999 300\na " + ROW, "vectors of 300 components do not fit in"),
    "binary of another dimension": (b"2 3\na " + ROW + b"\nb " + ROW + b"\nc " + ROW, "."),
    "empty": (b"", "is empty"),
    "blank": (b"\n\n \n", "is empty"),
    "no words": (b"0 5\n", "is empty: its first line says 0 words"),
    "no components": (b"2 0\na\nb\n", "is empty: its first line says 2 words of 0 components"),
    "a word twice": (b"a 1 2\nb 3 4\na 5 6\n", "'a' occurs twice, as number 1 and 3"),
    "a word twice, binary": (b"2 2\na " + ROW + b"\na " + ROW, "'a' occurs twice"),
    "not UTF-8": (b"a 1 2\n\xe9t\xe9 3 4\n", ":2: not UTF-8"),
    "not UTF-8, binary": (b"2 2\na " + ROW + b"\n\xe9t\xe9 " + ROW, "word 2: not UTF-8"),
    "truncated gzip": (gzip.compress(b"3 2\na 1 2\nb 3 4\nc 5 6\n", mtime=0)[:-9], "truncated or damaged"),
    "damaged gzip": (gzip.compress(b"3 2\na 1 2\n", mtime=0)[:10] + b"\xff" * 40, "truncated or damaged"),
    "a fastText model": (struct.pack("<2i", 793712314, 12) + b"\0" * 40, "is a fastText model"),
    "a fastText model of old": (
        struct.pack("<12id", 10, 5, 5, 5, 5, 1, 2, 2, 1000, 3, 6, 100, 1e-4),
        "a fastText model from before 2017",
    ),
    "something else": (struct.pack("<4i", 10, 5, 5, 1) + b"\0" * 40, "neither a text of vectors nor"),
    "UTF-16": ("a 1 2\n".encode("utf-16"), "is written in UTF-16; convert it to UTF-8"),
    "a pickle": (b"\x80\x04\x95\x10\x00", "is a pickle, which is never read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_error(tmp_path, name):
    content, says = BAD[name]
    path = tmp_path / "vectors.any"
    path.write_bytes(content)
    with pytest.raises(VectorError, match=says) as caught:
        load_word2vec(path)
    assert "\n" not in str(caught.value)
    assert "vectors.any" in str(caught.value)


@given(st.binary(max_size=200), st.sampled_from([b"", b"3 2\n", b"1 1\na ", b"\x1f\x8b\x08\x00"]))
@settings(deadline=None, max_examples=100)
def test_no_bytes_end_in_another_error(content, start):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v")
        path.write_bytes(start + content)
        with suppress(VectorError):
            load_word2vec(path)


@given(keyed(), st.data())
@settings(deadline=None)
def test_a_binary_cut_anywhere_is_refused(vectors, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.bin")
        save_word2vec(vectors, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
        with pytest.raises(VectorError):
            load_word2vec(path, binary=True)


def test_what_is_asked_for_must_be_possible(tmp_path, vectors):
    with pytest.raises(VectorError, match=r"cannot read '.*nowhere.txt': No such file"):
        load_word2vec(tmp_path / "nowhere.txt")
    with pytest.raises(VectorError, match=r"cannot read .*: Is a directory"):
        load_word2vec(tmp_path)
    save_word2vec(vectors, tmp_path / "glove.txt", header=False)
    with pytest.raises(VectorError, match="does not begin with a line of two numbers"):
        load_word2vec(tmp_path / "glove.txt", binary=True)
    with pytest.raises(VectorError, match="limit 0 leaves no words"):
        load_word2vec(tmp_path / "glove.txt", limit=0)
    with pytest.raises(VectorError, match="binary format needs its first line"):
        save_word2vec(vectors, tmp_path / "v.bin", header=False)


@pytest.mark.parametrize("word", ["", "two words", "two\nlines", "\ud800"])
def test_words_that_a_file_cannot_keep(tmp_path, word):
    vectors = KeyedVectors([word], np.ones((1, 2), np.float32))
    for name in ("v.txt", "v.bin"):
        with pytest.raises(VectorError, match=f"{name} cannot store it"):
            save_word2vec(vectors, tmp_path / name)
    if word not in ("", "two words"):
        with pytest.raises(VectorError, match=r"words.txt cannot store it"):
            save_vectors(vectors, tmp_path / "folder")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_vectors(tmp_path, vectors):
    with pytest.raises(VectorError, match=r"holds no word vectors: it has no vectors.json"):
        load_vectors(tmp_path)
    for name in ("vectors.npy", "words.txt", "vectors.json"):
        save_vectors(vectors, tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(VectorError, match=f"holds no word vectors: it has no {name}"):
            load_vectors(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("vectors.npy", lambda raw: raw[:-8]),
        ("vectors.npy", lambda raw: b""),
        ("vectors.npy", lambda raw: b"no array"),
        ("words.txt", lambda raw: raw[: len(raw) // 2]),
        ("words.txt", lambda raw: raw + b"more\n"),
        ("words.txt", lambda raw: b"\xff" + raw[1:]),
        ("vectors.json", lambda raw: raw[:-5]),
        ("vectors.json", lambda raw: b"[]"),
        ("vectors.json", lambda raw: b"{}"),
        ("vectors.json", lambda raw: raw.replace(b'"dim": 20', b'"dim": 21')),
        ("counts.npy", lambda raw: raw[:-8]),
    ],
)
def test_a_damaged_folder(tmp_path, vectors, name, damage):
    counted = KeyedVectors(vectors.index_to_key, vectors.vectors, counts=np.arange(len(vectors)))
    save_vectors(counted, tmp_path)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(VectorError, match="are damaged"):
        load_vectors(tmp_path)


@pytest.mark.parametrize("way", ["folder", "v.bin", "v.txt"])
def test_saving_copies_neither_words_nor_vectors(tmp_path, way):
    """One copy of the vectors is 4 MB here, the words' bytes 1 MB."""
    V, D = 20_000, 50
    matrix = np.random.default_rng(0).standard_normal((V, D)).astype(np.float32)
    wv = KeyedVectors([f"word{n}" for n in range(V)], matrix, counts=np.arange(V))
    tracemalloc.start()
    if way == "folder":
        wv.save(tmp_path / way)
    else:
        wv.save_word2vec_format(tmp_path / way, binary=way == "v.bin")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 900_000
    again = load_vectors(tmp_path / way)
    rows = slice(None) if way == "folder" else slice(None, None, -1)  # the most frequent first
    assert again.index_to_key == wv.index_to_key[rows]
    np.testing.assert_array_equal(again.vectors, matrix[rows])
