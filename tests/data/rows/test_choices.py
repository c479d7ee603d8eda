"""Multiple-choice questions out of every layout there is, and a clear line for every row that is none."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.data import ChoiceRow, choice_rows
from wordloom.errors import DataError

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
SWAG = (
    HEADER + ",label\n"
    '0,v1,7,"A man sits, quietly. He","A man sits, quietly.",He,gold,stands.,eats.,"sings ""la"".",left.,2\n'
    "1,v2,8,Snow falls. A dog,Snow falls.,A dog,gen,runs off.,reads a book.,melts.,is a cat.,0\n"
)
TEST_FILE = HEADER + "\n0,v1,7,Snow falls. A dog,Snow falls.,A dog,gold,runs.,reads.,melts.,flies.\n"


def test_swag(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(SWAG)
    first, second = choice_rows(path)
    assert first == ChoiceRow("A man sits, quietly.", "He", ("stands.", "eats.", 'sings "la".', "left."), 2,
                              str(path), 2)  # fmt: skip
    assert first.pairs[2] == ("A man sits, quietly.", 'He sings "la".')
    assert second.pairs == tuple(
        ("Snow falls.", f"A dog {end}") for end in ("runs off.", "reads a book.", "melts.", "is a cat.")
    )
    assert (second.answer, second.place) == (0, f"{path}:3")


def test_swags_endings_are_counted_by_their_names(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("label,sent2,sent1,ending2,ending0,ending1\n1,She,He is.,c,a,b\n")
    (row,) = choice_rows(path)
    assert (row.choices, row.choices[row.answer]) == (("a", "b", "c"), "b")
    for names in ("ending0,ending1,ending3", "ending0,ending1,ending1", "ending0,ending1,ending01"):
        path.write_text(f"label,sent2,sent1,{names}\n1,She,He is.,a,b,c\n")
        with pytest.raises(DataError, match=r"train\.csv:1: .*ending1"):
            list(choice_rows(path))


def test_swags_test_file_has_no_answers(tmp_path):
    path = tmp_path / "test.csv"
    path.write_text(TEST_FILE)
    assert [row.answer for row in choice_rows(path)] == [None]
    with pytest.raises(DataError, match=r"test\.csv:2: has no answer"):
        list(choice_rows(path, answered=True))


def test_letters_and_json_of_any_number_of_choices(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b'"What, then?",yes,no,B\r\nWho?,me,you,A\r\n'))
    lines = [
        {"query": "Why?", "choices": ["a", "b", "c"], "gold": 2},
        {"query": "Why not?", "choices": ["a", "b"]},
        {"context_options": ["Ann met Bo, so Ann", "Ann met Bo, so Bo"], "continuation": "ran.", "gold": 1},
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = list(choice_rows(tmp_path))
    assert [(row.context, len(row.choices), row.answer) for row in rows] == [
        ("What, then?", 2, 1), ("Who?", 2, 0), ("Why?", 3, 2), ("Why not?", 2, None), ("", 2, 1)
    ]  # fmt: skip
    assert rows[2].pairs == (("Why?", "a"), ("Why?", "b"), ("Why?", "c"))
    assert rows[4].pairs == (("Ann met Bo, so Ann", "ran."), ("Ann met Bo, so Bo", "ran."))
    assert rows[4].line == 3


BROKEN = [
    ("s.csv", SWAG.replace(",2\n", "\n"), r"s\.csv:2: has 11 fields but the first line has 12"),
    ("s.csv", SWAG.replace(",2\n", ",4\n"), r":2, field 'label': is '4'; of 4 .* from 0 to 3"),
    ("s.csv", SWAG.replace(",2\n", ",\n"), r":2, field 'label': is ''"),
    ("s.csv", SWAG.replace(",2\n", ",-1\n"), r":2, field 'label': is '-1'"),
    ("s.csv", SWAG.replace("melts.", " "), r":3, field 'ending2': the choice is empty"),
    ("s.csv", SWAG.replace(",Snow falls.,", ",,"), r":3, field 'sent1': the question is empty"),
    ("s.csv", SWAG.replace("sent1", "sentence1"), r":1: 0 columns are called 'sent1'"),
    ("s.csv", SWAG + '"open,', r":4: not valid CSV"),
    ("q.csv", "Who?,me,you,A\nWho?,me,A\n", r"q\.csv:2: has 3 fields but the first line has 4"),
    ("q.csv", "Who?,me,you,A\n\n", r":2: has no field but the first line has 4"),
    ("q.csv", "Who?,me,you,C\n", r":1, field 4: the answer is 'C'; with 2 choices .* from A to B"),
    ("q.csv", "Who?,me,you,AB\n", r":1, field 4: the answer is 'AB'"),
    ("q.csv", "Who?,me,,A\n", r":1, field '3': the choice is empty"),
    ("q.csv", " ,me,you,A\n", r":1, field '1': the question is empty"),
    ("q.csv", "Who?,me,A\n", r":1: has 3 fields; a question is in four or more"),
    ("j.jsonl", '{"query": "a", "choices"', r"j\.jsonl:1: not valid JSON .* column"),
    ("j.jsonl", '["a"]', r":1: holds a list; each line must be a JSON object"),
    ("j.jsonl", '{"qery": "a", "choices": ["b", "c"]}', r":1: no field 'query'.*did you mean 'qery'\?$"),
    ("j.jsonl", '{"query": 7, "choices": ["b", "c"]}', r":1, field 'query': holds a number, not text"),
    ("j.jsonl", '{"query": "a", "choices": "b"}', r"field 'choices': holds a text; it is a list of texts"),
    (
        "j.jsonl",
        '{"query": "a", "choices": ["b", "b"]}',
        r":1: its choices are all 'b'; correct",
    ),
    ("q.csv", "Who?,me,me,A\n", r":1: its choices are all 'me'; correct the row"),
    ("j.jsonl", '{"query": "a", "choices": ["b"]}', r"field 'choices': holds 1; give two choices or more"),
    ("j.jsonl", '{"query": "a", "choices": ["b", null]}', r"field 'choices\[1\]': holds a null, not text"),
    ("j.jsonl", '{"query": "a", "choices": ["b", ""]}', r"field 'choices\[1\]': the choice is empty"),
    ("j.jsonl", '{"query": "", "choices": ["b", "c"]}', r"field 'query': the question is empty"),
    ("j.jsonl", '{"query": "a", "choices": ["b", "c"], "gold": 2}', r"field 'gold': is 2; .* from 0 to 1"),
    ("j.jsonl", '{"query": "a", "choices": ["b", "c"], "gold": true}', r"field 'gold': is True"),
    ("j.jsonl", '{"context_options": ["a", "b"], "gold": 0}', r"no field 'continuation'"),
    ("j.jsonl", '{"query": "\\ud800", "choices": ["b", "c"]}', r":1: character 0 is half of a surrogate"),
]


@pytest.mark.parametrize(("name", "content", "says"), BROKEN)
def test_a_row_that_is_none_is_one_clear_line(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_text(content, newline="")
    with pytest.raises(DataError, match=says) as caught:
        list(choice_rows(path))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_or_for_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("no questions")
    (tmp_path / "q.csv").write_text("Who?,me,you,A\n")
    for source, says in [
        ([], "no source given"),
        (tmp_path / "p.csv", r"no file or named data set .*did you mean 'q\.csv'"),
        (tmp_path / "no" / "p.csv", "the folder '.*no' does not exist"),
        (tmp_path / "notes.txt", r"not read here; allowed: \.csv, \.jsonl"),
        (str(tmp_path / "*.json"), "no file matches"),
        ("sst2/dev", r"'sst2/dev' is for classification .*, not for multiple choice"),
        ("swag/tset", r"no part 'tset'; did you mean 'test'"),
    ]:
        with pytest.raises(DataError, match=says):
            list(choice_rows(source))
    assert len(list(choice_rows([str(tmp_path / "*.csv"), tmp_path]))) == 2
    with pytest.raises(DataError, match="encoding_errors is 'bytes'"):
        list(choice_rows(tmp_path, encoding_errors="bytes"))


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1).filter(str.strip),
    st.lists(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=2, max_size=6
    ).filter(lambda choices: len(set(choices)) > 1),
)
def test_any_text_comes_back_as_it_was_written(tmp_path_factory, question, choices):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(json.dumps({"query": question, "choices": choices, "gold": len(choices) - 1}))
    (row,) = choice_rows(path)
    assert (row.context, row.choices, row.answer) == (question, tuple(choices), len(choices) - 1)


@pytest.mark.parametrize(("name", "rows", "choices"), [
    ("openbookqa/train", 4956, 4), ("openbookqa/eval", 500, 4), ("arc-easy/train", 2242, 4),
    ("arc-easy/eval", 2376, 4), ("arc-challenge/train", 1118, 4), ("arc-challenge/eval", 1172, 4),
    ("mctest", 1477, 4), ("piqa", 1838, 2), ("copa", 100, 2), ("commonsense-qa", 1221, 4), ("siqa", 1954, 2),
    ("winogrande", 1267, 2),
])  # fmt: skip
def test_named_sets_are_read_as_they_are_known(data_folder, name, rows, choices):
    if not (data_folder / "multiple-choice").is_dir():
        pytest.skip(f"{name} is not here")
    found = list(choice_rows(name, answered=True))
    assert (len(found), {len(row.choices) for row in found}) == (rows, {choices})
    assert {row.answer for row in found} == set(range(choices))
    assert {bool(row.continuation) for row in found} == {name == "winogrande"}
