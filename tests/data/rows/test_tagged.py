"""Words with labels out of every layout there is, and a clear line for every row that is none."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.data import TaggedText, tag_labels, tagged_texts
from wordloom.data.rows.tagged import DOCSTART, unseen_tag
from wordloom.errors import DataError

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

-DOCSTART- -X- -X- O
Größe\tNN\tI-NP\tO\r
"""


def test_conll(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text(CONLL, newline="")
    dropped = Counter()
    texts = list(tagged_texts(path, dropped=dropped))
    assert texts == [
        TaggedText(("EU", "rejects"), ("B-ORG", "O"), str(path), 3, True),
        TaggedText(("Größe",), ("O",), str(path), 7, True),
    ]
    assert dropped == {DOCSTART: 2}
    assert [text.labels for text in tagged_texts(path, label=2)] == [("NNP", "VBZ"), ("NN",)]
    assert [text.words for text in tagged_texts(path, word=2, label=1)] == [("NNP", "VBZ"), ("NN",)]
    assert [text.labels for text in tagged_texts(path, labels=False)] == [None, None]
    assert tag_labels(texts) == ("B-ORG", "O")
    assert texts[0].place(1) == f"{path}:4"
    said = str(unseen_tag(texts[0], 0, ("B-ORGA", "O")))
    assert said.endswith(":3: the label 'B-ORG' of 'EU' was not seen in training; did you mean 'B-ORGA'?")


def test_json_and_folders(tmp_path):
    rows = [{"tokens": ["New York", "!"], "labels": ["B-LOC", 0], "pos": ["a", "b"]}]
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(rows[0]).encode()))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    first, second = tagged_texts(tmp_path)
    assert first == (("New York", "!"), ("B-LOC", "0"), str(tmp_path / "a.json"), 1, False)
    assert first[:2] == second[:2]
    assert second.place(1).endswith("b.jsonl.gz:1, word 2")
    assert next(tagged_texts(tmp_path, label="pos")).labels == ("a", "b")


words = st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=6)


@given(words)
def test_words_stand_in_the_text_where_their_spans_say(words):
    text = TaggedText(tuple(words), None, "x", 1)
    assert [text.text[begin:end] for begin, end in text.spans] == words
    assert len(text.text) == text.spans[-1][1]


BROKEN = [
    ("c.txt", "EU B-ORG\nis\n", {}, r"c\.txt:2: has 1 column where the first word has 2"),
    ("c.txt", "EU B-ORG\nis not O\n", {}, r":2: has 3 columns where the first word has 2"),
    ("c.txt", "EU\n", {}, r":1: of 1 column number 1 is both word and label"),
    ("c.txt", "EU B-ORG\n", {"label": 3}, r":1: has 2 columns and no column 3 for the label"),
    ("c.txt", "EU B-ORG\n", {"label": "ner"}, r"its columns have numbers, from 1; label is 'ner'"),
    ("c.txt", "EU B-ORG\n", {"word": 0}, r"its columns have numbers, from 1; word is 0"),
    ("j.jsonl", '{"tokens": ["a"], "labels": ["x"]', {}, r"j\.jsonl:1: not valid JSON .* column"),
    ("j.jsonl", '{"tokens": ["a"], "labels": ["x", "y"]}', {}, r"field 'labels': holds 2 labels of 1 words"),
    ("j.jsonl", '{"tokens": [], "labels": []}', {}, r":1, field 'tokens': holds no word"),
    ("j.jsonl", '{"tokens": ["a", ""], "labels": ["x", "y"]}', {}, r"field 'tokens\[1\]': is empty"),
    ("j.jsonl", '{"tokens": [1], "labels": ["x"]}', {}, r"field 'tokens\[0\]': holds a number, not text"),
    ("j.jsonl", '{"tokens": "a b", "labels": ["x"]}', {}, r"field 'tokens': holds a text; it is a list"),
    ("j.jsonl", '{"tokens": ["a"], "labels": [null]}', {}, r"field 'labels\[0\]': holds a null, not text"),
    (
        "j.jsonl",
        '{"tokens": ["a"], "label": ["x"]}',
        {},
        r":1: no field 'labels'.*did you mean 'label'\?$",
    ),
    (
        "j.jsonl",
        '{"tokens": ["a"], "labels": ["x"]}',
        {"word": 1},
        r"its fields have names; word is the number 1",
    ),
    ("j.csv", "a,x\n", {}, r"not read here; allowed: \.conll"),
]


@pytest.mark.parametrize(("name", "content", "settings", "says"), BROKEN)
def test_a_text_that_is_none_is_one_clear_line(tmp_path, name, content, settings, says):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        list(tagged_texts(path, **settings))
    assert "\n" not in str(caught.value)


def test_brown(data_folder):
    if not (data_folder / "brown").is_dir():
        pytest.skip("brown is not here")
    texts = list(tagged_texts("brown"))
    assert (len(texts), sum(len(text.words) for text in texts)) == (57_340, 1_161_192)
    assert all(len(text.words) == len(text.labels) for text in texts)
    assert len(tag_labels(texts)) == 472
    assert texts[0].words[:3] + texts[0].labels[:3] == ("The", "Fulton", "County", "at", "np-tl", "nn-tl")
    with pytest.raises(DataError, match=r"'sst2/dev' is for classification .*, not for tagging"):
        next(tagged_texts("sst2/dev"))
