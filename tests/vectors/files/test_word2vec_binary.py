"""word2vec's binary where it lies: single vectors from the file, all of them when they are needed."""

import copy
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, UnknownWordError, load_word2vec, save_word2vec
from wordloom.vectors.files import word2vec_binary
from wordloom.vectors.files.word2vec_binary import MappedVectors

words = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \n"), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
    unique=True,
)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.fixture
def binary(vectors, tmp_path) -> Path:
    save_word2vec(vectors, tmp_path / "v.bin")
    return tmp_path / "v.bin"


def is_gathered(wv: MappedVectors) -> bool:
    return "vectors" in vars(wv)


def test_single_vectors_are_read_from_the_file(vectors, binary):
    wv = load_word2vec(binary)
    assert isinstance(wv, MappedVectors)
    a, b, c = vectors.index_to_key[7:10]
    before = [wv[a], wv[[c, a]], wv.get_vector(b, norm=True), wv.get_mean_vector([a, b])]
    assert wv.similarity(a, b) == vectors.similarity(a, b)
    assert (wv.vector_size, len(wv), a in wv, "not there" in wv) == (20, 500, True, False)
    with pytest.raises(UnknownWordError, match="did you mean"):
        wv[a + "x"]
    assert not is_gathered(wv)
    assert wv.most_similar(a) == vectors.most_similar(a)
    assert is_gathered(wv)
    after = [wv[a], wv[[c, a]], wv.get_vector(b, norm=True), wv.get_mean_vector([a, b])]
    for first, then in zip(before, after, strict=True):
        assert first.tobytes() == then.tobytes()
        assert first.flags.aligned
    assert wv.vectors.tobytes() == vectors.vectors.tobytes()


@given(words, st.data(), st.booleans())
@settings(deadline=None)
def test_records_as_the_c_tool_and_gensim_write_them(found, data, breaks):
    dim = data.draw(st.integers(1, 5))
    rows = data.draw(arrays(np.float32, (len(found), dim), elements=numbers))
    content = f"{len(found)} {dim}\n".encode()
    for word, row in zip(found, rows, strict=True):
        content += word.encode() + b" " + row.tobytes() + (b"\n" if breaks else b"")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "v").write_bytes(content)
        wv = load_word2vec(Path(folder, "v"), binary=True)
        one = [wv[word].tobytes() for word in found]
        first = load_word2vec(Path(folder, "v"), binary=True, limit=1)
    assert wv.index_to_key == found
    assert b"".join(one) == wv.vectors.tobytes() == rows.tobytes()
    assert (first.index_to_key, first.vectors.tobytes()) == (found[:1], rows[:1].tobytes())


def test_large_files_are_copied_in_portions(vectors, binary, monkeypatch):
    monkeypatch.setattr(word2vec_binary, "_AT_ONCE", 1000)
    assert load_word2vec(binary).vectors.tobytes() == vectors.vectors.tobytes()


def test_the_file_may_be_replaced_and_removed(vectors, binary):
    wv = load_word2vec(binary)
    save_word2vec(wv, binary)  # over the very file that is mapped
    assert load_word2vec(binary).vectors.tobytes() == vectors.vectors.tobytes()
    wv = load_word2vec(binary)
    binary.unlink()
    assert wv.vectors.tobytes() == vectors.vectors.tobytes()


def test_copies_are_in_memory(vectors, binary):
    for duplicate in (copy.copy, copy.deepcopy, lambda wv: pickle.loads(pickle.dumps(wv))):
        wv = load_word2vec(binary)
        wv.set_vecattr(vectors.index_to_key[2], "count", 7)
        copied = duplicate(wv)
        assert type(copied) is KeyedVectors
        assert copied.counts.tolist() == [0, 0, 7] + [0] * 497
        assert copied.index_to_key == vectors.index_to_key
        assert copied.vectors.tobytes() == vectors.vectors.tobytes()


# -- what was found is kept --------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """Where indices lie, those of small new files too."""
    monkeypatch.setattr(word2vec_binary, "_INDEXED", 1)
    monkeypatch.setattr(word2vec_binary, "_MIN_AGE", -(2**63))
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


def refuse(*_):
    raise AssertionError("the file was looked through")


def test_a_file_is_scan_once(vectors, binary, kept, monkeypatch):
    load_word2vec(binary, limit=3)
    assert not kept.exists()
    load_word2vec(binary)
    assert len(list(kept.iterdir())) == 1
    with monkeypatch.context() as patched:
        patched.setattr(word2vec_binary, "_scan", refuse)
        patched.setattr(MappedVectors, "_refuse_non_finite", refuse)
        wv = load_word2vec(binary)
        assert wv.index_to_key == vectors.index_to_key
        assert wv[vectors.index_to_key[3]].tobytes() == vectors.vectors[3].tobytes()
        assert wv.vectors.tobytes() == vectors.vectors.tobytes()
        os.utime(binary, ns=(1, 1))
        with pytest.raises(AssertionError, match="looked through"):
            load_word2vec(binary)


def test_a_file_that_changed_is_scan_again(vectors, binary, kept):
    load_word2vec(binary)
    content = bytearray(binary.read_bytes())
    place = content.index(b"\n") + 1
    content[place : place + 1] = b"X"
    with binary.open("r+b") as file:  # the same file, as long as before
        file.write(content)
    assert load_word2vec(binary).index_to_key[0] == "X" + vectors.index_to_key[0][1:]
    assert len(list(kept.iterdir())) == 1


def test_a_damaged_index_is_none(vectors, binary, kept):
    load_word2vec(binary)
    [index] = kept.iterdir()
    whole = index.read_bytes()
    for damaged in (b"", b"no index", whole[: len(whole) // 2]):
        index.write_bytes(damaged)
        assert load_word2vec(binary).index_to_key == vectors.index_to_key
        assert index.read_bytes() == whole


def test_what_cannot_be_kept_is_done_without(vectors, binary, kept, monkeypatch):
    kept.parent.write_text("a file")
    assert load_word2vec(binary).index_to_key == vectors.index_to_key
    kept.parent.unlink()
    monkeypatch.setattr(word2vec_binary, "_MIN_AGE", 2**62)  # a file that may change within its time's grain
    assert load_word2vec(binary).index_to_key == vectors.index_to_key
    assert not kept.exists()


def test_only_of_whole_files_anything_is_kept(binary, kept):
    content = bytearray(binary.read_bytes())
    binary.write_bytes(content[:-9])
    with pytest.raises(VectorError, match="truncated"):
        load_word2vec(binary)
    content[-5:-1] = np.float32("nan").tobytes()
    binary.write_bytes(content)
    with pytest.raises(VectorError, match=r"v.bin': the vector of .* \(word number 500\) is not finite"):
        load_word2vec(binary)
    assert not kept.exists()
