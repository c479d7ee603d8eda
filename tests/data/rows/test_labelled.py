"""Labelled rows out of every table there is, and a clear line for every row that is none."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.data.rows.labelled import (
    REPEATED,
    LabelledCorpus,
    LabelledRow,
    labelled_rows,
    sorted_labels,
    unseen_label,
)
from wordloom.errors import DataError

ROWS = [("a fine film", "good"), ('so "bad", truly', "bad"), ("größer, 日本", "good"), ("", "bad")]


def written(folder: Path, name: str) -> Path:
    """ROWS in the format that ``name`` ends in."""
    path = folder / name
    stem = name.removesuffix(".gz").removesuffix(".xz").removesuffix(".zst")
    if stem.endswith(".parquet"):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        texts, labels = zip(*ROWS, strict=True)
        pq.write_table(pa.table({"text": list(texts), "label": list(labels)}), path)
        return path
    if stem.endswith(".tsv"):
        content = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *ROWS])
    elif stem.endswith(".csv"):
        lines = io.StringIO()
        csv.writer(lines).writerows([("text", "label"), *ROWS])
        content = lines.getvalue()
    else:
        objects = [{"text": text, "label": label} for text, label in ROWS]
        content = (
            json.dumps(objects) if stem.endswith(".json") else "\n".join(map(json.dumps, objects)) + "\n"
        )
    raw = content.encode()
    if name.endswith(".gz"):
        raw = gzip.compress(raw)
    elif name.endswith(".xz"):
        raw = lzma.compress(raw)
    elif name.endswith(".zst"):
        raw = pytest.importorskip("zstandard").ZstdCompressor().compress(raw)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    "name", ["r.tsv", "r.csv", "r.jsonl", "r.json", "r.parquet", "r.tsv.gz", "r.csv.xz", "r.jsonl.zst"]
)
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = written(tmp_path, name)
    rows = list(labelled_rows(path))
    assert [(row.texts[0], row.label) for row in rows] == ROWS
    first = 2 if ".tsv" in name or ".csv" in name else 1  # a header is line 1
    assert [row.line for row in rows] == list(range(first, first + 4))
    assert all(row.source == str(path) for row in rows)
    assert [row.label for row in labelled_rows(path, labels=False)] == [None] * 4


def test_columns_by_number_need_no_header(tmp_path):
    path = tmp_path / "r.tsv"
    path.write_text("0\tone\textra\n1\ttwo\textra\n")
    assert [(r.texts, r.label) for r in labelled_rows(path, text=2, label=1)] == [
        (("one",), "0"),
        (("two",), "1"),
    ]
    assert [r.texts for r in labelled_rows(path, text=2, label=1, header=True)] == [("two",)]
    assert next(iter(labelled_rows(path, text=[2, 3], label=1))).texts == ("one", "extra")


def test_a_quoted_field_may_go_over_several_lines(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text('text,label\r\n"one\ntwo",a\r\n"three",b\r\n', newline="")
    assert [(r.texts[0], r.label, r.line) for r in labelled_rows(path)] == [
        ("one\ntwo", "a", 2),
        ("three", "b", 4),
    ]


def test_a_tsv_has_no_quotes(tmp_path):
    path = tmp_path / "r.tsv"
    path.write_text('"open\t1\nclose"\t0\n')
    assert [r.texts[0] for r in labelled_rows(path, text=1, label=2)] == ['"open', 'close"']


def test_a_file_whose_name_begins_with_a_dash_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-rows.tsv").write_text("text\tlabel\na\tx\n")
    assert [row.label for row in labelled_rows("-rows.tsv")] == ["x"]
    with pytest.raises(DataError, match=r"no table or named data set '-other\.tsv'"):
        list(labelled_rows("-other.tsv"))


def test_labels_that_are_numbers_or_booleans_are_text(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"text": "a", "label": 3}\n{"text": "b", "label": true}\n{"text": null, "label": "x"}\n')
    assert [(r.texts[0], r.label) for r in labelled_rows(path)] == [("a", "3"), ("b", "true"), ("", "x")]


@pytest.mark.parametrize(
    ("name", "content", "settings", "says"),
    [
        ("r.tsv", "text\tlabel\na\t1\nb\n", {}, r"r\.tsv:3: has 1 field where the first line has 2"),
        ("r.tsv", "text\tlabel\na\t1\nb\tc\t1\n", {}, r":3: has 3 fields .* a tab always ends a field"),
        ("r.csv", "text,label\na,1\n\nb,0\n", {}, r"r\.csv:3: is empty where the first line has 2"),
        ("r.csv", 'text,label\na,1\n"b,0\n', {}, r"r\.csv:3: not valid CSV"),
        ("r.tsv", "text\tlabel\na\t \n", {}, r":2, column 'label': the label is empty"),
        ("r.tsv", "txt\tlabel\na\t1\n", {}, r":1: no column 'text'.*did you mean 'txt'"),
        ("r.tsv", "text\ttext\tlabel\na\tb\t1\n", {}, r"2 columns are called 'text'; give the number"),
        ("r.tsv", "a\t1\n", {"text": 1, "label": 3}, r"has 2 fields and no column 3; allowed: 1 to 2"),
        ("r.tsv", "a\t1\n", {"header": False}, r"without a header no column is called 'text', 'label'"),
        ("r.jsonl", '{"text": "a"}\n', {}, r":1: no column 'label'"),
        (
            "r.jsonl",
            '{"text": "a", "label": 1.5}\n',
            {},
            r":1, column 'label': the label is 1\.5; a label",
        ),
        (
            "r.tsv",
            "text\tlabel\na\t1\n",
            {"text": "label"},
            r"'label' is named for the text and for the label",
        ),
        ("r.jsonl", '{"text": "a", "label": null}\n', {}, r":1, column 'label': the label is empty"),
        ("r.jsonl", '{"text": 7, "label": "x"}\n', {}, r":1, column 'text': holds 7, which is not text"),
        (
            "r.jsonl",
            '{"text": "a", "label": 1}\n',
            {"text": 1},
            r"columns have names; say which, not the num",
        ),
        ("r.txt", "a\n", {}, r"has a suffix that is not read here; allowed: \.tsv"),
    ],
)
def test_a_row_that_is_none_is_one_clear_line(tmp_path, name, content, settings, says):
    path = tmp_path / name
    path.write_text(content, newline="")
    with pytest.raises(DataError, match=says) as caught:
        list(labelled_rows(path, **settings))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_or_no_table(tmp_path):
    written(tmp_path, "train.tsv")
    with pytest.raises(DataError, match=r"did you mean 'train\.tsv'"):
        list(labelled_rows(tmp_path / "trian.tsv"))
    with pytest.raises(DataError, match=r"glue-stsb.*holds no labelled rows"):
        list(labelled_rows("glue-stsb/dev"))
    (tmp_path / "latin.tsv").write_bytes(b"text\tlabel\ncaf\xe9\t1\n")
    with pytest.raises(DataError, match="not valid UTF-8"):
        list(labelled_rows(tmp_path / "latin.tsv"))
    replaced = list(labelled_rows(tmp_path / "latin.tsv", encoding_errors="replace"))
    assert replaced[0].texts == ("caf\ufffd",)


def test_folders_and_globs(tmp_path):
    for name in ("b.tsv", "a.jsonl"):
        written(tmp_path, name)
    (tmp_path / "notes.txt").write_text("no table")
    assert len(list(labelled_rows(tmp_path))) == 8
    assert next(iter(labelled_rows(tmp_path))).source[-7:] == "a.jsonl"
    assert len(list(labelled_rows(str(tmp_path / "*.tsv")))) == 4


@pytest.mark.parametrize(("name", "rows", "labels"), [
    ("sst2/train", 6920, {"0", "1"}), ("sst2/dev", 872, {"0", "1"}), ("glue-sst2/dev", 872, {"0", "1"}),
    ("glue-cola/train", 8551, {"0", "1"}), ("glue-rte/dev", 277, {"entailment", "not_entailment"}),
    ("glue-mrpc/dev", 408, {"0", "1"}), ("glue-mrpc/test", 1725, {"0", "1"}),
    ("surnames", 20050, {
        *("Arabic", "Chinese", "Czech", "Dutch", "English", "French", "German", "Greek", "Irish", "Italian"),
        *("Japanese", "Korean", "Polish", "Portuguese", "Russian", "Scottish", "Spanish", "Vietnamese"),
    }),
])  # fmt: skip
def test_named_sets_are_read_as_they_are_known(data_folder, name, rows, labels):
    folder = "names" if name == "surnames" else name.split("/")[0].split("-")[0]
    if not any(data_folder.glob(f"{folder}*")):
        pytest.skip(f"{name} is not here")
    found = list(labelled_rows(name))
    assert (len(found), {row.label for row in found}) == (rows, labels)
    pairs = name.startswith(("glue-rte", "glue-mrpc"))
    assert {len(row.texts) for row in found} == {2 if pairs else 1}
    assert all(all(row.texts) for row in found)


def test_the_parts_of_a_split_are_apart_and_complete(tmp_path):
    path = tmp_path / "r.tsv"
    path.write_text("".join(f"row {n}\t{n % 3}\n" for n in range(50)))
    settings = {"sources": path, "text": 1, "label": 2}
    for split in ("tail", "hash"):
        corpus = LabelledCorpus(**settings, split=split, validation_fraction=0.2)
        train, held_out = list(corpus.rows("train")), list(corpus.rows("validation"))
        assert sorted(row.line for row in train + held_out) == list(range(1, 51))
        assert 3 <= len(held_out) <= 20
        if split == "tail":
            assert [row.line for row in held_out] == list(range(41, 51))
    everything = LabelledCorpus(**settings, validation_fraction=0.0)
    assert len(list(everything.rows("train"))) == 50
    assert list(everything.rows("validation")) == []
    copy = tmp_path / "copy.tsv"
    copy.write_text(path.read_text())
    files = LabelledCorpus(**settings, split="files", validation_sources=copy)
    rows = {part: [(row.texts, row.label) for row in files.rows(part)] for part in ("train", "validation")}
    assert rows["train"] == rows["validation"]


def test_a_table_in_both_parts_is_known_by_any_name(tmp_path):
    path, link = tmp_path / "r.tsv", tmp_path / "link.tsv"
    path.write_text("a\t1\nb\t2\n")
    link.symlink_to(path)
    for name in (path, link, tmp_path):
        both = LabelledCorpus(sources=path, text=1, label=2, split="files", validation_sources=name)
        for part in ("train", "validation"):
            with pytest.raises(DataError, match="both a training and a validation file"):
                list(both.rows(part))


@pytest.fixture
def names(tmp_path):
    """A folder of lists: their names are the labels."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "Dutch.txt").write_text("Aalst\nPorra \r\n")
    (tmp_path / "lists" / "Italian.txt.gz").write_bytes(gzip.compress(b"Rossi\nD'Angelo"))
    return tmp_path / "lists"


def test_the_name_of_a_list_is_the_label_of_its_lines(names):
    expected = [("Aalst", "Dutch", 1), ("Porra", "Dutch", 2), ("Rossi", "Italian", 1),
                ("D'Angelo", "Italian", 2)]  # fmt: skip
    for sources in (names, str(names / "*"), sorted(names.iterdir())):
        rows = labelled_rows(sources, label="file")
        assert [(row.texts[0], row.label, row.line) for row in rows] == expected
    assert [row.label for row in labelled_rows(names, label="file", labels=False)] == [None] * 4
    copied = LabelledCorpus(sources=names, label="file", split="files", validation_sources=names)
    with pytest.raises(DataError, match="both a training and a validation file"):
        list(copied.rows("train"))


def test_a_table_may_have_a_column_called_file(tmp_path):
    (tmp_path / "r.tsv").write_text("text\tfile\na\tx\n")
    assert [row.label for row in labelled_rows(tmp_path, label="file")] == ["x"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "says"),
    [
        (
            "r.tsv",
            "text\tfile\na\tx\n",
            {},
            r"Dutch\.txt' is a list of texts, .*r\.tsv' a table; give one kind",
        ),
        ("empty.txt", "a\n \nb\n", {}, r"empty\.txt:2: is empty where a text is expected"),
        ("x.txt", "a\n", {"text": 1}, "without columns or a header"),
        ("x.txt", "a\n", {"header": True}, "without columns or a header"),
        ("x.txt", "a\n", {"label": None}, r"holds no table.*\.txt files .* take label_column \"file\""),
    ],
)
def test_a_list_that_is_none_is_one_clear_line(names, name, content, settings, says):
    (names / name).write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        list(labelled_rows(names, **{"label": "file", **settings}))
    assert "\n" not in str(caught.value)


def test_standard_input_has_no_name():
    with pytest.raises(DataError, match="standard input has no file name to label"):
        list(labelled_rows("-.txt", label="file"))


def test_equal_texts_fall_on_one_side_of_a_hash_split(tmp_path):
    path = tmp_path / "r.tsv"
    path.write_text("".join(f"row {n % 10}\t{n % 3}\n" for n in range(60)))
    corpus = LabelledCorpus(sources=path, text=1, label=2, split="hash", validation_fraction=0.3)
    sides = [{row.texts for row in corpus.rows(part)} for part in ("train", "validation")]
    assert not sides[0] & sides[1]


def test_rows_that_repeat_another_are_left_out_as_asked_and_counted(tmp_path):
    path = tmp_path / "r.tsv"
    path.write_text("".join(f"row {n % 10}\t{n % 3}\n" for n in range(60)))  # each pair of 30 twice
    corpus = LabelledCorpus(sources=path, text=1, label=2, split="hash", validation_fraction=0.3, unique=True)
    dropped: Counter[str] = Counter()
    rows = [row for part in ("train", "validation") for row in corpus.rows(part, dropped)]
    assert dropped == {REPEATED: 30}
    assert sorted(row.line for row in rows) == list(range(1, 31))  # the first of each


def test_a_row_of_the_last_part_that_repeats_a_training_row_is_left_out(tmp_path, rng):
    path = tmp_path / "r.tsv"
    numbers = [rng.randrange(25) for _ in range(rng.randrange(40, 61))]
    path.write_text("".join(f"row {n}\t{n % 2}\n" for n in numbers))
    corpus = LabelledCorpus(sources=path, text=1, label=2, validation_fraction=0.4, unique=True)
    dropped: Counter[str] = Counter()
    train, validation = ([row.line for row in corpus.rows(part, dropped)] for part in ("train", "validation"))
    first = [i + 1 for i, n in enumerate(numbers) if n not in numbers[:i]]
    edge = len(numbers) - int(len(numbers) * 0.4)
    assert train == [line for line in first if line <= edge]
    assert validation == [line for line in first if line > edge]
    assert dropped[REPEATED] == len(numbers) - len(first)


def test_labels_stand_in_an_order_of_their_own():
    assert sorted_labels(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert sorted_labels(["b", "10", "a"]) == ("10", "a", "b")
    with pytest.raises(DataError, match="only the label 'x'; classification takes two"):
        sorted_labels(["x", "x"])
    with pytest.raises(DataError, match="hold no row"):
        sorted_labels([])
    row = LabelledRow(("a",), "goood", "f.tsv", 7)
    assert str(unseen_label(row, ("good", "bad"))) == (
        "f.tsv:7: the label 'goood' was not seen in training; did you mean 'good'?"
    )


FIELD = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(FIELD, st.sampled_from(["a", "b c", 'd"e'])), min_size=1, max_size=6))
def test_what_csv_writes_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "r.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert [(row.texts[0], row.label) for row in labelled_rows(path)] == rows
