"""Scored rows, and a clear line for every score that is none."""

from __future__ import annotations

import json

import pytest

from wordloom.data import ScoredCorpus, ScoredRow, labelled_rows, scored_rows
from wordloom.errors import DataError

ROWS = [("one", "two", 3.75), ("three", "", -1.0), ("größer", "日本", 0.0)]


def write(path):
    if path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        a, b, score = zip(*ROWS, strict=True)
        pq.write_table(pa.table({"a": list(a), "b": list(b), "score": list(score)}), path)
    elif path.suffix == ".jsonl":
        path.write_text(
            "\n".join(json.dumps(dict(zip(("a", "b", "score"), row, strict=True))) for row in ROWS)
        )
    else:
        path.write_text("a\tb\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in ROWS))
    return path


@pytest.mark.parametrize("name", ["r.tsv", "r.jsonl", "r.parquet"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = write(tmp_path / name)
    rows = list(scored_rows(path, text=["a", "b"]))
    assert [(*row.texts, row.score) for row in rows] == ROWS
    named = ("a", "b", "score")
    assert rows[0] == ScoredRow(("one", "two"), 3.75, str(path), 2 if name == "r.tsv" else 1, named)
    assert [row.texts for row in scored_rows(path, text="b", score="score")][:2] == [("two",), ("",)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "r.tsv",
            "text\tscore\na\t1\nb\tmuch\n",
            r"r\.tsv:3, column 'score': the score is 'much'; give",
        ),
        ("r.tsv", "text\tscore\na\t\n", r":2, column 'score': the score is empty"),
        ("r.tsv", "text\tscore\na\tnan\n", r":2, column 'score': the score is 'nan'"),
        ("r.tsv", "text\tscore\na\n", r":2: has 1 field where the first line has 2"),
        ("r.tsv", "text\tscor\na\t1\n", r"no column 'score'.*did you mean 'scor'.*which the score$"),
        ("r.jsonl", '{"text": "a", "score": true}\n', r":1, column 'score': the score is True"),
        ("r.jsonl", '{"text": "a", "score": [1]}\n', r"the score is \[1\]"),
        ("r.jsonl", '{"text": "a", "score": 1' + "0" * 400 + "}\n", r"the score is 10"),
        ("r.jsonl", '{"text": "a", "score": 1e39}\n', r"the score is 1e\+39"),  # of float32 none
        ("r.jsonl", '{"text": 1, "score": 1}\n', r":1, column 'text': holds 1, which is not text"),
    ],
)
def test_a_row_that_is_none_is_one_clear_line(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        list(scored_rows(path))
    assert "\n" not in str(caught.value)


def test_scored_rows_are_divided_as_labelled_ones(tmp_path):
    path = tmp_path / "r.tsv"
    path.write_text("text\tscore\n" + "".join(f"row {n}\t{n / 4}\n" for n in range(20)) + "row 19\t4.75\n")
    corpus = ScoredCorpus(sources=path, validation_fraction=0.2, unique=True)
    assert [row.score for row in corpus.rows("validation")] == [4.25, 4.5, 4.75]
    assert len(list(corpus.rows("train"))) == 17


def test_sts_b(data_folder):
    if not (data_folder / "glue").is_dir():
        pytest.skip("GLUE is not here")
    train, dev = list(scored_rows("glue-stsb/train")), list(scored_rows("glue-stsb/dev"))
    assert (len(train), len(dev)) == (5749, 1500)
    assert {len(row.texts) for row in dev} == {2}
    assert (min(row.score for row in train), max(row.score for row in train)) == (0.0, 5.0)
    assert dev[1].texts == ("A young child is riding a horse.", "A child is riding a horse.")
    assert dev[1].score == 4.75
    corpus = ScoredCorpus(sources="glue-stsb/train", split="files", validation_sources="glue-stsb/dev")
    assert next(iter(corpus.rows("validation"))) == dev[0]
    assert len(next(iter(labelled_rows("glue-stsb/dev", labels=False))).texts) == 2
