"""fastText models that are broken, and what cannot be one: each a clear error, nothing half done."""

import base64
import gzip
import struct
import tempfile
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vectors.fasttext_models import (
    REAL,
    equal,
    models,
    small,
)

from wordloom.errors import VectorError
from wordloom.vectors import (
    FastTextArgs,
    FastTextClassifier,
    load_fasttext,
    load_vectors,
    save_fasttext,
)

ENTRY = b"a\0" + struct.pack("<qb", 3, 0)
FLOATS = struct.pack("<2f", 1, 2)


def a_file(
    magic=793712314, version=12, args=(2, 5, 5, 5, 5, 1, 2, 2, 1, 3, 6, 100), sizes=(1, 1, 0, 3, -1),
    entries=ENTRY, input=(0, 2, 2, 2 * FLOATS), output=(0, 1, 2, FLOATS), end=b"",
):  # fmt: skip
    content = struct.pack("<2i", magic, version) + struct.pack("<12id", *args, 1e-4)
    content += struct.pack("<3iqq", *sizes) + entries
    for quantized, rows, columns, values in (input, output):
        content += struct.pack("<?qq", quantized, rows, columns) + values
    return content + end


def changed(place, value):
    args = [2, 5, 5, 5, 5, 1, 2, 2, 1, 3, 6, 100]
    args[place] = value
    return a_file(args=args)


NAN = struct.pack("<2f", 1, float("nan"))
PRUNED = ENTRY + struct.pack("<4i", 0, 0, 5, 1)
BAD = {
    "empty": (b"", "not a fastText model"),
    "a text": (b"2 2\na 1 2\nb 3 4\n", "not a fastText model"),
    "magic alone": (struct.pack("<i", 793712314), "truncated in the first bytes"),
    "a later version": (a_file(version=13), "of version 13; versions 11 and 12 are supported"),
    "an earlier version": (a_file(version=10), "of version 10; versions 11 and 12 are supported"),
    "no settings": (a_file()[:40], "truncated in the settings"),
    "no dimension": (changed(0, 0), "damaged: FastTextArgs.*a dim of 1 or more"),
    "no loss": (changed(6, 0), "damaged: there is no loss 0"),
    "no such loss": (changed(6, 5), "damaged: there is no loss 5"),
    "no such model": (changed(7, 4), "damaged: there is no loss 2 or no model 4"),
    "buckets below 0": (changed(8, -5), "damaged: buckets -5 is out of range"),
    "other buckets": (changed(8, 7), "the input matrix is 2 x 2 and must be 8 x 2"),
    "n-grams below 0": (changed(9, -1), "damaged: min_n -1 is out of range"),
    "no dictionary": (a_file()[:70], "truncated in the dictionary"),
    "entries do not add up": (a_file(sizes=(2, 1, 0, 3, -1)), "damaged: 2 entries are 1 words and 0 labels"),
    "fewer than none": (a_file(sizes=(0, -1, 1, 3, -1)), "damaged: 0 entries are -1 words and 1 labels"),
    "a huge dictionary": (
        a_file(sizes=(2**30, 2**30, 0, 3, -1)),
        "1,073,741,824 words and labels do not fit",
    ),
    "a cut dictionary": (a_file(sizes=(3, 3, 0, 3, -1), entries=b"a" * 40)[:-50], "truncated in word 1 of 3"),
    "a word that never ends": (
        a_file(entries=b"", input=(1, -1, -1, b"\xff" * 8))[:92] + b"\xff" * 20,
        "truncated",
    ),
    "neither word nor label": (a_file(entries=b"a\0" + struct.pack("<qb", 3, 2)), "damaged at word 1 of 1"),
    "a count below 0": (a_file(entries=b"a\0" + struct.pack("<qb", -3, 0)), "damaged at word 1 of 1"),
    "a label before": (
        a_file(sizes=(2, 1, 1, 3, -1), entries=b"l\0" + struct.pack("<qb", 3, 1) + ENTRY),
        "a label precedes a word",
    ),
    "a word twice": (
        a_file(
            sizes=(2, 2, 0, 3, -1),
            entries=2 * ENTRY,
            input=(0, 3, 2, 3 * FLOATS),
            output=(0, 2, 2, 2 * FLOATS),
        ),
        "the word 'a' occurs twice",
    ),
    "pruned": (a_file(sizes=(1, 1, 0, 3, 2), entries=PRUNED), "pruned to 2 n-grams; train it again without"),
    "pruned to none": (a_file(sizes=(1, 1, 0, 3, 0)), "pruned to 0 n-grams"),
    "pruned and quantized": (
        a_file(sizes=(1, 1, 0, 3, 2), entries=PRUNED, input=(1, 2, 2, b"")),
        r"pruned to 2 n-grams and quantized \(.ftz\); give the original .bin",
    ),
    "pruned and cut": (a_file(sizes=(1, 1, 0, 3, 2**62), entries=PRUNED), "truncated in the input matrix"),
    "quantized": (a_file(input=(1, 2, 2, b"")), r"quantized \(.ftz\)"),
    "really quantized": (
        base64.b64decode(REAL["quantized"]),
        r"quantized \(.ftz\).*give the original .bin",
    ),
    "output quantized": (a_file(output=(1, 1, 2, FLOATS)), r"quantized \(.ftz\)"),
    "another dimension": (
        a_file(input=(0, 2, 3, 3 * FLOATS)),
        "the input matrix is 2 x 3 and must be 2 x 2",
    ),
    "another output": (a_file(output=(0, 2, 2, 2 * FLOATS)), "the output matrix is 2 x 2 and must be 1 x 2"),
    "rows below 0": (a_file(input=(0, -1, -4, FLOATS)), "the input matrix is -1 x -4 and must be"),
    "input cut": (
        a_file(output=(0, 1, 2, b""))[:-20],
        "truncated in the input matrix: 13 bytes of 16 are there",
    ),
    "no output": (a_file()[:-25], "truncated in the output matrix"),
    "output cut": (a_file()[:-1], "truncated in the output matrix: 7 bytes of 8 are there"),
    "more": (a_file(end=b"more"), "4 bytes follow after the output matrix"),
    "not finite": (a_file(input=(0, 2, 2, NAN + FLOATS)), r"row 1 \('a'\) of the input matrix is not finite"),
    "an n-gram not finite": (
        a_file(input=(0, 2, 2, FLOATS + NAN)),
        "row 2 of the input matrix is not finite",
    ),
    "output not finite": (a_file(output=(0, 1, 2, NAN)), "row 1 of the output matrix is not finite"),
    "cut gzip": (gzip.compress(a_file(), mtime=0)[:-9], "truncated or damaged"),
    "runs without buckets": (
        a_file(args=(2, 5, 5, 5, 5, 2, 2, 3, 0, 0, 0, 100), input=(0, 1, 2, FLOATS), output=(0, 0, 2, b"")),
        "damaged: word_ngrams 2 needs buckets",
    ),
}


def test_the_file_that_is_broken_below_is_whole(tmp_path):
    (tmp_path / "m.bin").write_bytes(a_file())
    model = load_fasttext(tmp_path / "m.bin")
    assert (list(model.words), model.args.model, model.args.loss) == (["a"], "skipgram", "ns")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_error(tmp_path, name):
    content, says = BAD[name]
    path = tmp_path / "model.any"
    path.write_bytes(content)
    with pytest.raises(VectorError, match=says) as caught:
        load_fasttext(path)
    assert "\n" not in str(caught.value)
    assert "model.any" in str(caught.value)
    if content.startswith(struct.pack("<i", 793712314)) and len(content) > 4:
        with pytest.raises(VectorError, match=says):
            load_vectors(path)


@given(models(), st.data())
@settings(deadline=None)
def test_a_model_cut_or_continued_is_refused(model, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "m.bin")
        save_fasttext(model, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(VectorError):
            load_fasttext(path)
        path.write_bytes(whole + data.draw(st.binary(min_size=1, max_size=20)))
        with pytest.raises(VectorError, match="follow after"):
            load_fasttext(path)


@given(models(), st.data())
@settings(deadline=None, max_examples=100)
def test_no_bytes_end_in_another_error(model, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "m.bin")
        save_fasttext(model, path)
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        some = data.draw(st.binary(min_size=1, max_size=12))
        raw[place : place + len(some)] = some
        path.write_bytes(raw)
        with suppress(VectorError):
            load_vectors(path)


def test_old_classifiers_had_no_ngrams(tmp_path):
    """Version 11 says it had, as FastText::loadModel knows."""
    model = small(V=4, L=2)
    save_fasttext(model, tmp_path / "m.bin")
    raw = bytearray((tmp_path / "m.bin").read_bytes())
    raw[4] = 11
    (tmp_path / "m.bin").write_bytes(raw)
    read = load_fasttext(tmp_path / "m.bin")
    assert (read.args.max_n, model.args.max_n) == (0, 6)
    np.testing.assert_array_equal(read.wv.vectors, model.input_matrix[:4])


def test_a_missing_file(tmp_path):
    for load in (load_fasttext, load_vectors):
        with pytest.raises(VectorError, match=r"cannot read '.*nowhere.bin': No such file"):
            load(tmp_path / "nowhere.bin")
    with pytest.raises(VectorError, match=r"cannot read .*: Is a directory"):
        load_fasttext(tmp_path)


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "\udcc3\udca9"])  # the last would be read as é
def test_words_that_a_model_cannot_keep(tmp_path, word):
    with pytest.raises(VectorError, match="half a surrogate pair"):
        save_fasttext(replace(small(V=1), words=[word]), tmp_path / "m.bin")
    with pytest.raises(VectorError, match="half a surrogate pair"):
        save_fasttext(replace(small(V=1, L=1), labels=[word]), tmp_path / "m.bin")
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    model = small()
    save_fasttext(model, tmp_path / "m.bin")

    def full(*_):
        raise OSError(28, "No space left on device")

    broken = small()
    broken.output_matrix[2, 1] = np.inf
    for wrong, says in (
        (broken, "row 3 of the output matrix is not finite"),
        (replace(model, words=["a", "b", "c", "d", "a"]), "'a' occurs twice"),
        (replace(small(V=4, L=1), labels=["the"]), "'the' occurs twice"),
    ):
        with pytest.raises(VectorError, match=says):
            save_fasttext(wrong, tmp_path / "m.bin")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(VectorError, match=r"cannot write to .*: No space left on device"):
        save_fasttext(small(seed=1), tmp_path / "m.bin")
    assert [file.name for file in tmp_path.iterdir()] == ["m.bin"]
    equal(load_fasttext(tmp_path / "m.bin"), model)


def test_models_that_do_not_fit():
    good = small(V=4, L=2)
    for changes, says in (
        ({"counts": np.ones(3, np.int64)}, "4 words have 3 counts"),
        ({"label_counts": None}, "2 labels have 0 counts"),
        (
            {"input_matrix": good.input_matrix[1:]},
            r"an input matrix of shape \(33, 4\) does not fit 4 words, 30",
        ),
        (
            {"output_matrix": good.output_matrix[1:]},
            r"an output matrix of shape \(1, 4\) does not fit 2 labels",
        ),
        ({"args": replace(good.args, model="cbow")}, r"\(2, 4\) does not fit 4 words"),
        ({"args": replace(good.args, dim=5)}, "an input matrix"),
    ):
        with pytest.raises(VectorError, match=says):
            replace(good, **changes)
    for given_args, says in (
        ({"model": "skip-gram"}, "unknown model 'skip-gram'; did you mean 'skipgram'"),
        ({"loss": "hierarchical"}, "unknown loss 'hierarchical'; allowed: hs, ns, softmax, ova"),
        ({"dim": 0}, "a dim of 1 or more"),
        ({"epochs": 2**31}, r"give numbers below 2\^31"),
        ({"buckets": -1}, "buckets -1 is out of range"),
        ({"word_ngrams": 2, "buckets": 0}, "word_ngrams 2 needs buckets"),
    ):
        with pytest.raises(VectorError, match=says):
            FastTextArgs(**given_args)
    with pytest.raises(VectorError, match="there are no vectors here"):
        _ = small(V=0, L=2).wv
    assert repr(good) == "FastTextModel(supervised, 4 words, 2 labels, 30 buckets, 4 components)"


def test_a_model_without_words(tmp_path):
    save_fasttext(small(V=0, L=2), tmp_path / "m.bin")
    assert FastTextClassifier(load_fasttext(tmp_path / "m.bin")).predict("word", k=-1)  # by its n-grams
    with pytest.raises(VectorError, match=r"m.bin': there are no vectors here"):
        load_vectors(tmp_path / "m.bin")
