"""Splits: nothing lost, nothing in both parts, cut where said; and what a corpus's identity depends on."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from wordloom.data import Corpus
from wordloom.data.files.stream import BLOCK
from wordloom.data.text.corpus import CUT, EMPTY, Tally
from wordloom.errors import DataError


def texts(corpus: Corpus, part: str) -> list:
    return [document.text for document in corpus.documents(part)]


def write_jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.1, 0.5, 0.95])
@pytest.mark.parametrize(
    "documents",
    [
        ["abcdefghij"],
        ["ab", "", "cdé日", "", "", "fghij", "k"],
        ["x" * 7, "y" * 3],
        ["x" * (2 * BLOCK + 17)],
    ],
)
def test_tail_cuts_at_the_exact_character(tmp_path: Path, fraction: float, documents: list[str]) -> None:
    corpus = Corpus(sources=write_jsonl(tmp_path / "a.jsonl", documents), validation_fraction=fraction)
    whole = "".join(documents)
    edge = int(len(whole) * (1 - fraction))
    train, validation = Tally(), Tally()
    before = "".join(str(p.text) for p in corpus.pieces("train", tally=train))
    after = "".join(str(p.text) for p in corpus.pieces("validation", tally=validation))
    assert (before, after) == (whole[:edge], whole[edge:])
    boundaries = {0, len(whole)} | {sum(map(len, documents[:n])) for n in range(len(documents))}
    assert train.cut[CUT] == validation.cut[CUT] == (edge not in boundaries)
    assert train.dropped[EMPTY] + validation.dropped[EMPTY] == documents.count("")


def test_tail_over_one_file_in_pieces(tmp_path: Path) -> None:
    text = "".join(f"line {n} é\n" for n in range(300_000))
    (tmp_path / "a.txt").write_text(text)
    for fraction in (0.1, 1 - BLOCK / len(text)):
        corpus = Corpus(sources=tmp_path / "a.txt", validation_fraction=fraction)
        edge = int(len(text) * (1 - fraction))
        assert texts(corpus, "train") == [text[:edge]]
        assert texts(corpus, "validation") == [text[edge:]]
        assert [p.cut for p in corpus.pieces("train")][-1]


def test_tail_counts_bytes_where_there_are_only_bytes(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 10
    (tmp_path / "a.txt").write_bytes(raw)
    corpus = Corpus(sources=tmp_path / "a.txt", encoding_errors="bytes")
    assert texts(corpus, "train") == [raw[:2304]]
    assert "bytes" in corpus.describe_split()


def test_tiny_shakespeare_splits_as_nanogpt_does(data_folder: Path) -> None:
    corpus = Corpus(sources="tiny-shakespeare")
    assert [len(texts(corpus, part)[0]) for part in ("train", "validation")] == [1_003_854, 111_540]


def test_hash_divides_whole_documents_by_their_content_alone(tmp_path: Path) -> None:
    documents = [f"document {n} " + "x" * (n % 50) for n in range(3000)]
    corpus = Corpus(
        sources=write_jsonl(tmp_path / "a.jsonl", documents), split="hash", validation_fraction=0.2
    )
    train, validation = texts(corpus, "train"), texts(corpus, "validation")
    assert sorted(train + validation) == sorted(documents)
    assert abs(len(validation) / 3000 - 0.2) < 5 * (0.2 * 0.8 / 3000) ** 0.5
    again = Corpus(
        sources=write_jsonl(tmp_path / "b.jsonl", [*documents[::-1], "new"]),
        split="hash",
        validation_fraction=0.2,
    )
    assert set(texts(again, "validation")) - {"new"} == set(validation)
    smaller = Corpus(sources=tmp_path / "a.jsonl", split="hash", validation_fraction=0.1)
    assert set(texts(smaller, "validation")) < set(validation)


def test_hash_of_long_documents_does_not_depend_on_how_they_arrive(tmp_path: Path) -> None:
    long = [("日本語" * 9 + f"{n}\n") * 16_000 for n in range(8)]
    whole = write_jsonl(tmp_path / "a.jsonl", long)
    (tmp_path / "b.txt").write_text("\n@@\n".join(long))
    one = Corpus(sources=whole, split="hash", validation_fraction=0.5)
    two = Corpus(sources=tmp_path / "b.txt", separator="@@", split="hash", validation_fraction=0.5)
    for part in ("train", "validation"):
        assert texts(one, part) == texts(two, part)
    assert 0 < len(texts(one, "validation")) < 8


def test_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    corpus = Corpus(sources=tmp_path / "a.txt", split="files", validation_sources=[tmp_path / "b.txt"])
    assert (texts(corpus, "train"), texts(corpus, "validation"), texts(corpus, "all")) == (
        ["a"],
        ["b"],
        ["a", "b"],
    )
    both = Corpus(sources=tmp_path, split="files", validation_sources=tmp_path / "b.txt")
    with pytest.raises(DataError, match="both a training and a validation file"):
        texts(both, "validation")


def test_a_file_in_both_parts_is_known_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "link.txt").symlink_to("a.txt")
    monkeypatch.chdir(tmp_path)
    for name in ("./a.txt", "link.txt", tmp_path / "a.txt"):
        both = Corpus(sources="a.txt", split="files", validation_sources=name)
        with pytest.raises(DataError, match=r"(a|link)\.txt: is both a training and a validation file"):
            both.files("train")
    with pytest.raises(DataError, match="-: is both a training and a validation file"):
        Corpus(sources="-", split="files", validation_sources="-").files("train")


def test_a_missing_validation_file_is_met_before_training_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    corpus = Corpus(sources=tmp_path / "a.txt", split="files", validation_sources=tmp_path / "b.txt")
    with pytest.raises(DataError, match=r"no file or named data set '.*b\.txt'"):
        corpus.files("train")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"split": "tial"}, "did you mean 'tail'"),
        ({"validation_fraction": 1.0}, "0 <= fraction < 1"),
        ({"validation_fraction": -0.1}, "0 <= fraction < 1"),
        ({"split": "files"}, "needs validation_sources"),
        ({"validation_sources": "b.txt"}, "need split='files'"),
    ],
)
def test_settings_that_contradict(settings: dict, named: str) -> None:
    with pytest.raises(DataError, match=named):
        Corpus(sources="a.txt", **settings)


def test_fingerprint_follows_content_and_settings_not_names(tmp_path: Path) -> None:
    for name in ("a.txt", "copy.txt", "a.md"):
        (tmp_path / name).write_text("same\n\ntext")
    (tmp_path / "other.txt").write_text("same\n\ntexT")

    def of(name: str = "a.txt", **settings) -> str:
        return Corpus(sources=tmp_path / name, **settings).part_fingerprint("all")

    assert of() == of() == of("copy.txt") == of("a.md")
    different = [
        of("other.txt"),
        of(separator="line"),
        of(encoding_errors="replace"),
        of(split="hash"),
        of(validation_fraction=0.2),
        of(field="body"),
        Corpus(sources=[tmp_path / "a.txt", tmp_path / "copy.txt"]).part_fingerprint("all"),
    ]
    assert len({of(), *different}) == 8


def test_changing_validation_files_leaves_the_training_part_as_it_is(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    one, two = (
        Corpus(sources=tmp_path / "a.txt", split="files", validation_sources=tmp_path / f"{name}.txt")
        for name in "bc"
    )
    assert one.part_fingerprint("train") == two.part_fingerprint("train")
    assert one.part_fingerprint("validation") != two.part_fingerprint("validation")


def test_standard_input_can_be_gone_through_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0123456789")))
    corpus = Corpus(sources="-")
    assert len(corpus.part_fingerprint("all")) == 64
    assert texts(corpus, "train") + texts(corpus, "validation") == ["012345678", "9"]
    assert next(corpus.documents()).source == "-"
