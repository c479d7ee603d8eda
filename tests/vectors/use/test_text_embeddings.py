"""Vectors of texts: the papers' formulas in plain numpy, and what is unknown is told."""

import gzip
import itertools
import json
import warnings

import numpy as np
import pytest
from pyarrow import parquet

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors, TextEmbedder, TokenVectors, UnknownWordError, split_words
from wordloom.vectors.files.embedded_texts import (
    load_components,
    read_texts,
    save_components,
    write_embeddings,
)
from wordloom.vectors.files.words import read_word_counts

A = 1e-3


@pytest.fixture(scope="module")
def counted(vectors):
    counts = np.sort(np.random.default_rng(3).zipf(1.3, size=len(vectors)))[::-1].astype(np.int64)
    return KeyedVectors(vectors.index_to_key, vectors.vectors, counts=counts)


@pytest.fixture(scope="module")
def texts(vectors):
    rng = np.random.default_rng(4)
    share = 1 / np.arange(1, len(vectors) + 1)
    lengths = rng.integers(1, 30, size=60)
    return [" ".join(rng.choice(vectors.index_to_key, size=n, p=share / share.sum())) for n in lengths]


@pytest.mark.parametrize("method", ["mean", "sum"])
def test_vectors_of_one_component(method):
    vectors = KeyedVectors(["a", "b"], np.array([[1.0], [3.0]], np.float32))
    assert TextEmbedder(vectors, method).encode(["a b"]).tolist() == [[2.0 if method == "mean" else 4.0]]


def by_the_paper(vectors, texts, p, a=A, fit_on=None):
    """Algorithm 1 of Arora et al. 2017, line by line, in float64."""

    def weighted(texts):
        v = []
        for s in texts:
            words = [w for w in s.split() if w in vectors]
            v.append(sum(a / (a + p[w]) * vectors[w].astype(np.float64) for w in words) / len(words))
        return np.stack(v, axis=1)  # columns are v_s

    X = weighted(fit_on or texts)
    u = np.linalg.svd(X)[0][:, :1]
    v = weighted(texts)
    return (v - u @ u.T @ v).T


def test_mean_and_sum(vectors, texts):
    rows = [vectors[text.split()].astype(np.float64) for text in texts]
    mean, total = TextEmbedder(vectors).encode(texts), TextEmbedder(vectors, "sum").encode(texts)
    assert mean.dtype == np.float32
    assert np.allclose(mean, [row.mean(axis=0) for row in rows], atol=1e-5)
    assert np.allclose(total, [row.sum(axis=0) for row in rows], atol=1e-4)
    assert TextEmbedder(vectors).encode(texts[0]).shape == (vectors.vector_size,)
    assert np.array_equal(TextEmbedder(vectors).encode(texts[0]), mean[0])
    assert TextEmbedder(vectors).encode([]).shape == (0, vectors.vector_size)


def test_mean_is_gensims(vectors, texts):
    from tests.vectors.conftest import as_gensim

    theirs = as_gensim(vectors)
    expected = [theirs.get_mean_vector(text.split(), pre_normalize=False) for text in texts]
    assert np.allclose(TextEmbedder(vectors).encode(texts), expected, atol=1e-5)


def test_smooth_inverse_frequency_by_counts(counted, texts):
    p = dict(zip(counted.index_to_key, counted.counts / counted.counts.sum(), strict=True))
    embedder = TextEmbedder(counted, "sif")
    report = embedder.fit(texts)
    assert embedder.frequencies_from == "counts"
    assert (report.texts, report.unknown, report.empty) == (len(texts), 0, [])
    assert np.allclose(embedder.encode(texts), by_the_paper(counted, texts, p), atol=1e-5)
    other = TextEmbedder(counted, "sif", a=0.1)
    other.fit(texts[:20], batch_size=7)
    expected = by_the_paper(counted, texts, p, a=0.1, fit_on=texts[:20])
    assert np.allclose(other.encode(texts), expected, atol=1e-5)
    assert not np.allclose(other.encode(texts), embedder.encode(texts), atol=1e-3)


def test_smooth_inverse_frequency_by_rank_or_given_counts(vectors, texts):
    harmonic = sum(1 / r for r in range(1, len(vectors) + 1))
    p = {word: 1 / (rank * harmonic) for rank, word in enumerate(vectors.index_to_key, 1)}
    embedder = TextEmbedder(vectors, "sif")
    embedder.fit(texts)
    assert embedder.frequencies_from == "rank"
    assert np.allclose(embedder.encode(texts), by_the_paper(vectors, texts, p), atol=1e-5)

    given = {word: 7 * i + 2 for i, word in enumerate(vectors.index_to_key[:-3])}
    total = sum(given.values())
    p = {word: given.get(word, 1) / total for word in vectors.index_to_key}
    embedder = TextEmbedder(vectors, "sif", frequencies=given)
    embedder.fit(texts)
    assert np.allclose(embedder.encode(texts), by_the_paper(vectors, texts, p), atol=1e-5)


def test_what_texts_share_is_gone(counted, texts):
    for k in (0, 1, 3):
        embedder = TextEmbedder(counted, "sif", n_components=k)
        if k:
            embedder.fit(texts)
        rows = embedder.encode(texts)
        assert embedder.components.shape == (k, counted.vector_size)
        assert np.allclose(rows @ embedder.components.T, 0, atol=1e-5)
    again = TextEmbedder(counted, "sif", components=embedder.components)
    assert np.array_equal(again.encode(texts), rows)


@pytest.mark.parametrize("k", [1, 2])
def test_texts_too_few_to_share_anything_are_refused(counted, k):
    a, b, c, d, e = counted.index_to_key[5:10]
    different = [a, f"{b} {a}", f"{c} {c} {b}", f"{d} {e}"]
    embedder = TextEmbedder(counted, "sif", n_components=k)
    for n in range(1, k + 2):
        says = "1 or -1 for .*; fit on more" if n > k else "leaves nothing for .*; fit on more"
        for texts in (
            different[:n],
            [*different[:n], "", *different[:n]],
            [f"{t} {t}" for t in different[:n]] * 3,
        ):
            with pytest.raises(VectorError, match=says):
                embedder.fit(texts)
            assert embedder.components is None
    with pytest.raises(VectorError, match="nothing for one text with a known word"):
        embedder.fit([a, "unheardof"])
    embedder.fit(different[: k + 2])
    rows = embedder.encode(different[: k + 2], normalize_embeddings=True)
    cosines = np.abs(rows @ rows.T)[np.triu_indices(k + 2, 1)]
    assert cosines.min() < 0.99  # something tells them apart
    alone = TextEmbedder(counted, "sif", n_components=k, components=embedder.components).encode(a)
    assert np.linalg.norm(alone) > 0.01


def test_batches_and_length_do_not_matter(counted, texts):
    embedder = TextEmbedder(counted, "sif")
    embedder.fit(texts)
    whole = embedder.encode(texts)
    assert np.allclose(embedder.encode(texts, batch_size=7), whole, atol=1e-6)
    units = embedder.encode(texts, normalize_embeddings=True)
    assert np.allclose(units, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-5)


def test_unknown_words_are_counted_and_empty_texts_told(vectors):
    a, b = vectors.index_to_key[:2]
    texts = [f"{a.upper()} unheardof, {b}!", "", "unheardof words", a]
    embedder = TextEmbedder(vectors)
    rows, report = embedder.encode_batch(texts)
    assert (report.texts, report.words, report.unknown, report.empty) == (4, 6, 3, [1, 2])
    assert np.allclose(rows[0], (vectors[a] + vectors[b]) / 2, atol=1e-6)
    assert not rows[1].any()
    assert not rows[2].any()
    with pytest.warns(UserWarning, match="4 texts, 6 words, 3 of them unknown; rows of zeros .*: 2, 3"):
        embedder.encode(texts, normalize_embeddings=True, batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder.encode([texts[0], a])


def test_how_words_are_cut(vectors):
    a, b = vectors.index_to_key[:2]
    text = f"{a}, {b.upper()}"
    assert split_words(text) == [a, b]
    expected = {
        "words": vectors[[a, b]].mean(axis=0),
        "whitespace": vectors[b],
    }
    for split, row in expected.items():
        assert np.allclose(TextEmbedder(vectors, split=split).encode(text), row, atol=1e-6)
    assert np.allclose(TextEmbedder(vectors, lower=False).encode(text), vectors[a], atol=1e-6)
    assert np.allclose(TextEmbedder(vectors, split=lambda _: [b]).encode(text), vectors[b], atol=1e-6)


class Beyond(KeyedVectors):
    """Gives vectors to words that have no row, as fastText's vectors do."""

    def get_vector(self, key, norm=False):
        try:
            return super().get_vector(key, norm)
        except UnknownWordError:
            if not str(key).startswith("x"):
                raise
            return np.full(self.vector_size, len(key), dtype=np.float32)


def test_words_beyond_the_vocabulary_may_have_vectors(vectors):
    beyond = Beyond(vectors.index_to_key, vectors.vectors)
    a = vectors.index_to_key[0]
    rows, report = TextEmbedder(beyond).encode_batch(
        [f"{a} xxxxxxxxxx xxxxxxxxxx zzzzzzzzzz", "xyxyxyxyxyxy"]
    )
    assert np.allclose(rows[0], (vectors[a] + 20) / 3, atol=1e-5)
    assert np.allclose(rows[1], 12)
    assert report.unknown == 1
    sif = TextEmbedder(beyond, "sif", n_components=0)
    weight = A / (A + 1 / sum(len(vectors) / r for r in range(1, len(vectors) + 1)))
    assert np.allclose(sif.encode(["xxxxxxxxxx"])[0], 10 * weight, rtol=1e-4)


def test_a_stream_is_read_a_batch_at_a_time(vectors, texts):
    drawn = 0

    def endless():
        nonlocal drawn
        for text in itertools.cycle(texts):
            drawn += 1
            yield text

    stream = TextEmbedder(vectors).stream(endless(), batch_size=10)
    for k in range(1, 5):
        batch, rows, report = next(stream)
        assert (len(batch), rows.shape, report.texts, drawn) == (10, (10, 20), 10, 10 * k)


def test_mistakes(vectors, counted):
    with pytest.raises(VectorError, match=r"unknown method 'siff'; did you mean 'sif'\?"):
        TextEmbedder(vectors, "siff")
    with pytest.raises(VectorError, match="unknown split 'word'"):
        TextEmbedder(vectors, split="word")
    with pytest.raises(VectorError, match="a 0 is out of range"):
        TextEmbedder(vectors, "sif", a=0)
    with pytest.raises(VectorError, match="call fit first, or give components"):
        TextEmbedder(counted, "sif").encode(["x"])
    with pytest.raises(VectorError, match="these vectors have no counts"):
        TextEmbedder(vectors, "sif", frequencies="counts")
    for counts in (np.zeros(len(vectors), np.int64), np.arange(len(vectors)) - 3):
        with pytest.raises(VectorError, match="negative or all zero"):
            TextEmbedder(KeyedVectors(vectors.index_to_key, vectors.vectors, counts=counts), "sif")
    with pytest.raises(VectorError, match="counts must not be negative"):
        TextEmbedder(vectors, "sif", frequencies={"a": 0})
    with pytest.raises(VectorError, match="unknown frequencies 'ranks'"):
        TextEmbedder(vectors, "sif", frequencies="ranks")
    with pytest.raises(VectorError, match="none of 2 texts has a known word"):
        TextEmbedder(counted, "sif").fit(["", "unheardof"])
    with pytest.raises(VectorError, match="'mean' has nothing to fit"):
        TextEmbedder(vectors).fit(["x"])
    with pytest.raises(VectorError, match="do not fit vectors of 20 components"):
        TextEmbedder(counted, "sif", components=np.eye(1, 19))
    with pytest.raises(VectorError, match="not of length 1 and at right angles"):
        TextEmbedder(counted, "sif", components=np.ones((1, 20)))
    with pytest.raises(VectorError, match="n_components 20 is out of range: 0 to 19"):
        TextEmbedder(counted, "sif", n_components=20)


def test_a_models_tokens_have_no_order(data):
    from wordloom.vectors import open_vectors

    tokens = open_vectors(data / "weights" / "stories260K" / "hf")
    assert isinstance(tokens, TokenVectors)
    with pytest.raises(VectorError, match="not sorted by frequency"):
        TextEmbedder(tokens, "sif")
    TextEmbedder(tokens, "sif", frequencies={" the": 5})


# -- files -------------------------------------------------------------------------------------------------


def batches(texts, rows, size=3):
    for start in range(0, len(texts), size):
        yield texts[start : start + size], rows[start : start + size]


@pytest.mark.parametrize("n", [0, 1, 10])
def test_files_of_vectors(vectors, tmp_path, n):
    rows = vectors.vectors[:n]
    texts = [f'line "{i}"\t☃' for i in range(n)]
    for suffix in ("npy", "jsonl", "tsv", "parquet"):
        assert write_embeddings(tmp_path / f"e.{suffix}", batches(texts, rows), 20) == n
    stored = np.load(tmp_path / "e.npy")
    assert stored.dtype == np.float32
    assert stored.shape == (n, 20)
    assert np.array_equal(stored, rows)
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == texts
    assert np.array_equal(np.array([line["embedding"] for line in lines], np.float32).reshape(n, 20), rows)
    tsv = [line.split("\t") for line in (tmp_path / "e.tsv").read_text().splitlines()]
    assert np.array_equal(np.array(tsv, dtype=np.float32).reshape(n, 20), rows)
    columns = parquet.read_table(tmp_path / "e.parquet").to_pydict()
    assert columns["text"] == texts
    assert np.array_equal(np.array(columns["embedding"], np.float32).reshape(n, 20), rows)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_is_whole_or_not_there(vectors, tmp_path):
    def breaks():
        yield ["a"], vectors.vectors[:1]
        raise RuntimeError("power cut")

    (tmp_path / "e.npy").write_bytes(b"older")
    with pytest.raises(RuntimeError):
        write_embeddings(tmp_path / "e.npy", breaks(), 20)
    with pytest.raises(RuntimeError):
        write_embeddings(tmp_path / "e.parquet", breaks(), 20)
    assert [path.name for path in tmp_path.iterdir()] == ["e.npy"]
    assert (tmp_path / "e.npy").read_bytes() == b"older"
    with pytest.raises(
        VectorError, match=r"is not a format of vectors.*allowed: \.npy, \.jsonl, \.tsv, \.parquet"
    ):
        write_embeddings(tmp_path / "e.hdf5", breaks(), 20)
    with pytest.raises(VectorError, match="cannot write"):
        write_embeddings(tmp_path / "e.npy" / "x.npy", breaks(), 20)


def test_reading_texts(tmp_path):
    content = "first\r\n\nthird ☃\nlast without a break"
    (tmp_path / "t.txt").write_bytes(content.encode())
    (tmp_path / "t.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("t.txt", "t.gz"):
        assert list(read_texts(tmp_path / name)) == ["first", "", "third ☃", "last without a break"]
    (tmp_path / "marked.txt").write_bytes("\ufefffirst\n\ufeffsecond\n".encode())
    assert list(read_texts(tmp_path / "marked.txt")) == ["first", "\ufeffsecond"]
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(VectorError, match=r"bad.txt:2: not UTF-8"):
        list(read_texts(tmp_path / "bad.txt"))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(content.encode())[:-9])
    with pytest.raises(VectorError, match="truncated or damaged"):
        list(read_texts(tmp_path / "cut.gz"))
    with pytest.raises(VectorError, match="cannot read"):
        list(read_texts(tmp_path / "none.txt"))


def test_files_of_counts_and_components(tmp_path):
    (tmp_path / "counts.txt").write_text("the 100\nnew york 7\nking\t3\n")
    assert read_word_counts(tmp_path / "counts.txt") == {"the": 100, "new york": 7, "king": 3}
    (tmp_path / "bad.txt").write_text("the 100\nking\n")
    with pytest.raises(VectorError, match=":2: not a word and its count: 'king'"):
        read_word_counts(tmp_path / "bad.txt")
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(VectorError, match="is empty"):
        read_word_counts(tmp_path / "none.txt")
    components = np.eye(2, 5, dtype=np.float32)
    save_components(tmp_path / "c.npy", components)
    assert np.array_equal(load_components(tmp_path / "c.npy"), components)
    with pytest.raises(VectorError, match="give a file that --save-component wrote"):
        load_components(tmp_path / "counts.txt")
