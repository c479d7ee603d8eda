"""Token files of datatrove, written by datatrove itself: equal documents, and damaged files are refused."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import numpy as np
import pytest

from wordloom.data import CausalBatches, prepare
from wordloom.data.shards.datatrove import DatatroveShards
from wordloom.data.shards.prepared import PreparedCorpus, names_prepared, open_prepared
from wordloom.errors import DataError
from wordloom.text import Tokenizer

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("datatrove")

SEED = secrets.randbits(32)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the quick brown fox " * 30], kind="bpe", vocab_size=280)


def texts(rng: np.random.Generator, count: int) -> list[str]:
    words = ["the", "quick", "brown", "fox", "x"]
    return [" ".join(rng.choice(words, int(rng.integers(1, 30))).tolist()) for _ in range(count)]


def write(folder: Path, documents: list[list[str]], tokenizer: Tokenizer, **settings) -> Path:
    """Let datatrove tokenize the documents of each task."""
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenizer.save_pretrained(folder.with_name("tokenizer"))
    end = tokenizer.id_to_token(tokenizer.eos_id)
    for rank, some in enumerate(documents):
        step = DocumentTokenizer(
            output_folder=str(folder),
            tokenizer_name_or_path=str(folder.with_name("tokenizer") / "tokenizer.json"),
            eos_token=end,
            shuffle_documents=False,
            **settings,
        )
        step.run((Document(text=text, id=str(n)) for n, text in enumerate(some)), rank, len(documents))
    return folder


def expected(documents: list[list[str]], tokenizer: Tokenizer) -> list[list[int]]:
    return [[*tokenizer.encode_ids(text), tokenizer.eos_id] for some in documents for text in some]


def drawn(count: int = 3) -> list[list[str]]:
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    return [texts(rng, int(rng.integers(1, 60))) for _ in range(count)]


def assert_equal(shards: DatatroveShards, documents: list[list[int]]) -> None:
    assert shards.ids[:].tolist() == [token for ids in documents for token in ids]
    assert shards.ends[:].tolist() == np.cumsum([len(ids) for ids in documents]).tolist()


def test_documents_are_those_that_datatrove_wrote(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = drawn()
    folder = write(tmp_path / "ds", documents, tokenizer)
    assert names_prepared(str(folder))
    shards = prepare(PreparedCorpus(train=str(folder)), tokenizer, part="train")
    assert_equal(shards, expected(documents, tokenizer))
    assert (shards.eos_id, shards.vocab_size) == (tokenizer.eos_id, tokenizer.vocab_size)
    assert shards.ledger.tokens == len(shards)
    assert "bytes" not in shards.ledger.lines()[0]
    assert "an end-of-document token follows each document" in shards.ledger.notes
    names = [shards.document_name(n) for n in range(len(shards.ends))]
    places = [
        f"{folder}/{rank:05}_unshuffled.ds#{n}"
        for rank, some in enumerate(documents)
        for n in range(len(some))
    ]
    assert names == places
    origins = [(rank, n) for rank, some in enumerate(documents) for n in range(len(some))]
    assert shards.origins.tolist() == [list(each) for each in origins]
    assert CausalBatches(shards, seq_len=4, document_mask=True).batch(0, 3).tokens.shape == (3, 4)
    with pytest.raises(DataError, match="does not say how many bytes its documents have"):
        shards.document_bytes  # noqa: B018


@pytest.mark.parametrize("kept", ["index", "metadata", "neither"])
def test_an_index_or_the_metadata_may_be_missing(tmp_path: Path, tokenizer: Tokenizer, kept: str) -> None:
    documents = drawn()
    folder = write(tmp_path / "ds", documents, tokenizer)
    for path in [*folder.glob("*.index"), *folder.glob("*.metadata")]:
        if path.suffix != f".{kept}":
            path.unlink()
    shards = open_prepared(str(folder)).open("all", tokenizer)
    ids = expected(documents, tokenizer)
    if kept == "index":
        assert_equal(shards, ids)
        return
    assert shards.ids[:].tolist() == [token for some in ids for token in some]
    assert len(shards.ends) == 3
    assert "without an index, read as one document each: 3 file(s)" in shards.ledger.notes


def test_ids_of_four_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    rng = np.random.default_rng(SEED)
    documents = [rng.integers(0, 100_000, int(rng.integers(1, 40))).tolist() for _ in range(30)]
    file = TokenizedFile(str(tmp_path / "ds"), "a.ds", token_size=4, save_final_metadata=True)
    for ids in documents:
        file.write(ids, None)
    file.close()
    large = Tokenizer.train([], kind="byte")
    large.vocab_size = 100_000  # type: ignore[misc]
    assert_equal(open_prepared(str(tmp_path / "ds")).open("all", large), documents)
    large.vocab_size = 50_000  # type: ignore[misc]
    with pytest.raises(DataError, match=r"holds the id \d+, and the vocabulary has 50000 tokens"):
        open_prepared(str(tmp_path / "ds")).open("all", large)


def test_files_that_datatrove_merged(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from datatrove.pipeline.tokens import DocumentTokenizerMerger

    documents = drawn()
    folder = write(tmp_path / "ds", documents, tokenizer)
    merger = DocumentTokenizerMerger(
        str(folder), str(tmp_path / "merged"), "mine", shuffle=False, max_tokens_per_file=200, progress=False
    )
    merger.run()
    assert_equal(
        open_prepared(str(tmp_path / "merged")).open("all", tokenizer), expected(documents, tokenizer)
    )


def test_one_file_and_several_files_by_name(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = drawn()
    folder = write(tmp_path / "ds", documents, tokenizer)
    files = [str(path) for path in sorted(folder.glob("*.ds"))]
    assert_equal(open_prepared(files[1]).open("all", tokenizer), expected([documents[1]], tokenizer))
    chosen = expected([documents[2], documents[0]], tokenizer)
    assert_equal(open_prepared([files[2], files[0]]).open("all", tokenizer), chosen)


def test_files_behind_a_url(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = drawn()
    folder = write(tmp_path / "ds", documents, tokenizer)
    url = f"memory://{secrets.token_hex(8)}"
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), url, recursive=True)
    shards = prepare(PreparedCorpus(train=url), tokenizer, part="train")
    assert_equal(shards, expected(documents, tokenizer))
    several = [f"{url}/{name}" for name in ("00002_unshuffled.ds", "00001_unshuffled.ds")]
    two = expected([documents[2], documents[1]], tokenizer)
    assert_equal(open_prepared(several).open("all", tokenizer), two)
    again = prepare(PreparedCorpus(train=url), tokenizer, part="train")
    assert again.fingerprint == shards.fingerprint
    # a file of equal size in its place is not mixed with cached blocks
    content = memory.cat_file(several[0])
    memory.pipe_file(several[0], np.frombuffer(content, "<u2")[::-1].tobytes())
    changed = open_prepared(several[0]).open("all", tokenizer)
    one = [token for ids in expected([documents[2]], tokenizer) for token in ids]
    assert changed.ids[:].tolist() == one[::-1]
    assert changed.fingerprint != open_prepared(several[1]).open("all", tokenizer).fingerprint


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("wordloom.data.shards.remote.files._VERIFIED", 0.0)
    monkeypatch.setattr("wordloom.data.shards.remote.files.BLOCK", 64)
    monkeypatch.setattr("wordloom.data.shards.remote.files._AT_ONCE", 2)
    url = f"memory://{secrets.token_hex(8)}"
    memory = fsspec.filesystem("memory")
    folder = write(tmp_path / "ds", [texts(np.random.default_rng(SEED), 100)], tokenizer)
    memory.put(str(folder), url, recursive=True)
    shards = open_prepared(url).open("all", tokenizer)
    shutil.rmtree(os.environ["WORDLOOM_CACHE"])
    shards.tokens(0, 4)
    name = f"{url}/00000_unshuffled.ds"
    memory.pipe_file(name, memory.cat_file(name)[::-1])
    with pytest.raises(DataError, match="was changed while it was read; start again"):
        shards.tokens(len(shards) // 2, len(shards))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "short tokens",
            r"is damaged: [\d,]+ bytes, where its index has [\d,]+ tokens of 2 bytes",
        ),
        ("odd index", r"\.index' is damaged: [\d,]+ bytes are no 64-bit numbers"),
        ("metadata", r"\.metadata' is not a description by datatrove"),
        ("another tokenizer", "was written with another tokenizer than"),
        ("another size", "was written with another tokenizer than"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, tokenizer: Tokenizer, damage: str, message: str) -> None:
    folder = write(tmp_path / "ds", drawn(), tokenizer)
    file = folder / "00001_unshuffled.ds"
    index, metadata = (folder / f"{file.name}.{end}" for end in ("index", "metadata"))
    match damage:
        case "short tokens":
            file.write_bytes(file.read_bytes()[:-2])
        case "odd index":
            index.write_bytes(index.read_bytes()[:-1])
        case "metadata":
            metadata.write_text("something else")
        case "another tokenizer":
            metadata.write_text(metadata.read_text().replace("tokenizer.json", "other.json"))
        case "another size":
            file.write_bytes(np.frombuffer(file.read_bytes(), "<u2").astype("<u4").tobytes())
            metadata.write_text(metadata.read_text().replace("|2\n", "|4\n"))
    with pytest.raises(DataError, match=message) as caught:
        open_prepared(str(folder)).open("all", tokenizer)
    assert "\n" not in str(caught.value)
