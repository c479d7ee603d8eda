"""Files of vectors whose words are not UTF-8, as the original C tools write them."""

from __future__ import annotations

import gzip
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors as GensimVectors
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, convert_vectors, load_vectors, load_word2vec, open_vectors
from wordloom.vectors.fasttext.model import FastTextArgs, FastTextModel
from wordloom.vectors.files import word2vec_binary
from wordloom.vectors.files.fasttext import save_fasttext

WORDS = [b"caf\xe9", b"the", b"caf\xe8", b"caf", b"\xe6\x97\xa5", b"\xff\xfea"]
VECTORS = np.arange(18, dtype=np.float32).reshape(6, 3)
MODES = ["strict", "ignore", "replace", "surrogateescape"]


def _written(path: Path, *, binary: bool) -> Path:
    with (gzip.open if path.suffix == ".gz" else open)(path, "wb") as file:
        file.write(b"6 3\n")
        for word, row in zip(WORDS, VECTORS, strict=True):
            numbers = row.tobytes() if binary else " ".join(map(str, row)).encode()
            file.write(word + b" " + numbers + b"\n")
    return path


def _expected(mode: str) -> tuple[list[str], list[int]]:
    words = [word.decode("utf-8", mode) for word in WORDS]
    rows = [row for row, word in enumerate(words) if word not in words[:row]]
    return [words[row] for row in rows], rows


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.txt.gz", "v.bin.gz"])
def test_words_that_are_not_utf8(tmp_path: Path, monkeypatch, name: str, mode: str) -> None:
    """As gensim reads them; a binary the second time by the index that the first left."""
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(word2vec_binary, "_INDEXED", 0)
    monkeypatch.setattr(word2vec_binary, "_MIN_AGE", -1)
    path = _written(tmp_path / name, binary=".bin" in name)
    with pytest.raises(
        VectorError, match=r"not UTF-8 \(.*unicode_errors=\"replace\" or .*\(--unicode-errors"
    ):
        load_word2vec(path)
    words, rows = _expected(mode)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            found = load_vectors(path, unicode_errors=mode)
        assert (found.index_to_key, np.array_equal(found.vectors, VECTORS[rows])) == (words, True)
        assert [f"{len(WORDS) - len(rows)} words" in str(note.message) for note in noted] == (
            [] if len(rows) == len(WORDS) else [True]
        )
        with pytest.raises(VectorError, match="not UTF-8"):
            open_vectors(path)
    if mode != "surrogateescape":
        theirs = GensimVectors.load_word2vec_format(str(path), binary=".bin" in name, unicode_errors=mode)
        assert [word for word in theirs.index_to_key if word is not None] == words  # it leaves holes
        ours = KeyedVectors.load_word2vec_format(path, binary=".bin" in name, unicode_errors=mode)
        assert ours.index_to_key == words


def test_fasttexts_two_files_are_read_alike(tmp_path: Path) -> None:
    model = FastTextModel(
        args=FastTextArgs(dim=3, buckets=5, min_n=2, max_n=3),
        words=[word.decode("utf-8", "surrogateescape") for word in WORDS],
        counts=np.arange(6, 0, -1),
        input_matrix=np.random.default_rng(0).standard_normal((11, 3)).astype(np.float32),
        output_matrix=np.zeros((6, 3), dtype=np.float32),
        n_tokens=21,
    )
    save_fasttext(model, tmp_path / "m.bin")
    convert_vectors(tmp_path / "m.bin", tmp_path / "m.vec", unicode_errors="surrogateescape")
    assert re.findall(rb"^\S+(?= .* )", (tmp_path / "m.vec").read_bytes(), re.MULTILINE) == WORDS
    for path in (tmp_path / "m.bin", tmp_path / "m.vec"):
        with pytest.raises(VectorError, match=r"m\.(bin, word 1|vec:2): not UTF-8"):
            load_vectors(path)
        for mode in MODES[1:]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = open_vectors(path, unicode_errors=mode)
            words, rows = _expected(mode)
            assert found.index_to_key == words
            np.testing.assert_array_equal(found.vectors, model.wv.vectors[rows])
    convert_vectors(tmp_path / "m.bin", tmp_path / "same.bin")  # keeps the bytes of the words
    assert (tmp_path / "same.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()


def test_the_command_takes_the_choice(tmp_path: Path) -> None:
    path = _written(tmp_path / "v.bin", binary=True)
    for verb in (["similar", path, "the"], ["convert", path, tmp_path / "out.txt"]):
        refused = CliRunner().invoke(app, ["vectors", *map(str, verb)])
        assert isinstance(refused.exception, VectorError)
        taken = CliRunner().invoke(app, ["vectors", *map(str, verb), "--unicode-errors", "replace"])
        assert taken.exit_code == 0, taken.output
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")[1].startswith("caf\ufffd ")
