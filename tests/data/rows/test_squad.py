"""Questions out of SQuAD's JSON, and a clear line with file and field for everything that is amiss."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from wordloom.data import Answer, questions
from wordloom.data.rows.squad import MOVED, asked
from wordloom.errors import DataError

CONTEXT = "Das Café öffnet um acht. 🙂 Um acht schließt es."
ROW = {
    "version": "v2.0",
    "data": [
        {
            "title": "Cafés",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "a",
                            "question": " Wann öffnet es? ",
                            "answers": [
                                {"text": "um acht", "answer_start": 16},
                                {"text": "acht", "answer_start": 19},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "b",
                            "question": "Wer führt es?",
                            "answers": [],
                            "plausible_answers": [{"text": "es", "answer_start": 44}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        }
    ],
}
FIRST = "data[0].paragraphs[0].qas[0]"


def written(folder: Path, value: Any, name: str = "squad.json") -> Path:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    path = folder / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def changed(change: Any) -> Any:
    value = copy.deepcopy(ROW)
    change(value)
    return value


def qa(value: Any, i: int = 0) -> dict[str, Any]:
    return value["data"][0]["paragraphs"][0]["qas"][i]


@pytest.mark.parametrize("name", ["squad.json", "squad.json.gz"])
def test_every_question_with_its_answers(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, ROW, name)
    first, second = questions(path)
    assert (first.id, first.title, first.context) == ("a", "Cafés", CONTEXT)
    assert first.question == " Wann öffnet es? "
    assert first.answers == (Answer("um acht", 16), Answer("acht", 19))
    assert [CONTEXT[answer.start : answer.end] for answer in first.answers] == ["um acht", "acht"]
    assert not first.is_impossible
    assert first.place == f"{path}: {FIRST}"
    assert (second.id, second.answers, second.is_impossible) == ("b", (), True)
    assert list(questions(tmp_path)) == [first, second]
    assert list(questions(str(tmp_path / "*.json*"))) == [first, second]


def test_v1_without_ids_and_titles(tmp_path: Path) -> None:
    entry = {"question": "Was?", "answers": [{"text": "Café", "answer_start": 4}]}
    value = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [entry, entry]}]}]}
    path = written(tmp_path, value)
    assert [(one.id, one.title) for one in questions(path)] == [(f"{path}#1", ""), (f"{path}#2", "")]
    del entry["answers"]
    path = written(tmp_path, value)
    assert [one.answers for one in questions(path, answers=False)] == [(), ()]
    with pytest.raises(DataError, match=r"qas\[0\]\.answers: is missing; expected a list of objects"):
        list(questions(path))


def answered(**changes: Any) -> Any:
    return changed(lambda value: qa(value)["answers"][0].update(changes))


def test_an_answer_that_stands_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, answered(text="acht", answer_start=31))
    with pytest.raises(DataError) as error:
        list(questions(path))
    assert str(error.value) == (
        f"{path}: {FIRST}.answers[0].answer_start: is 31, where the context has 'cht ', not 'acht', which "
        "is at 30; offsets count characters (code points) from 0, not bytes; correct it, or set "
        'misplaced="nearest" (data.misplaced)'
    )
    counts: Counter[str] = Counter()
    first, _ = questions(path, misplaced="nearest", counts=counts)
    assert first.answers[0] == Answer("acht", 30)
    assert counts == {MOVED: 1}
    for start in (18, len(CONTEXT) + 5, -4):
        written(tmp_path, answered(answer_start=start))
        with pytest.raises(DataError, match=rf"is {start}, where the .* not 'um acht', which is at 16"):
            list(questions(path))
    in_bytes = len(CONTEXT[:16].encode())
    written(tmp_path, answered(answer_start=in_bytes))
    with pytest.raises(DataError, match="from 0, and this one counts bytes; correct it"):
        list(questions(path))


def test_an_answer_that_is_nowhere(tmp_path: Path) -> None:
    path = written(tmp_path, answered(text="neun"))
    for misplaced in ("error", "nearest"):
        with pytest.raises(DataError, match=r"answers\[0\]\.text: 'neun' is not in its context"):
            list(questions(path, misplaced=misplaced))


WRONG = {
    "list": ([], "is a list; expected SQuAD's JSON, an object with 'data'"),
    "data": ({"rows": []}, "data: is missing; expected a list of objects; the fields there are 'rows'"),
    "article": ({"data": ["x"]}, r"data\[0\]: is a text; expected an object"),
    "title": (
        changed(lambda v: v["data"][0].update(title=3)),
        r"data\[0\]\.title: is a number \(3\); expected",
    ),
    "context": (
        changed(lambda v: v["data"][0]["paragraphs"][0].update(context=" \n")),
        r"data\[0\]\.paragraphs\[0\]\.context: is empty; expected text",
    ),
    "qas": (
        changed(lambda v: v["data"][0]["paragraphs"][0].update(qas=None)),
        r"paragraphs\[0\]\.qas: is null; expected a list of objects",
    ),
    "question": (changed(lambda v: qa(v).update(question="")), r"qas\[0\]\.question: is empty"),
    "no question": (changed(lambda v: qa(v).pop("question")), r"qas\[0\]\.question: is missing"),
    "id": (changed(lambda v: qa(v).update(id=7)), r"qas\[0\]\.id: is a number \(7\); expected text"),
    "twice": (
        changed(lambda v: qa(v, 1).update(id="a")),
        r"qas\[1\]\.id: 'a' is also that of .*squad\.json: data\[0\]\.paragraphs\[0\]\.qas\[0\]; give each",
    ),
    "impossible": (
        changed(lambda v: qa(v).update(is_impossible="no")),
        r"qas\[0\]\.is_impossible: is a text; expected true or false",
    ),
    "both": (
        changed(lambda v: qa(v).update(is_impossible=True)),
        r"qas\[0\]\.answers: holds 2, and is_impossible is true; expected none",
    ),
    "neither": (
        changed(lambda v: qa(v, 1).update(is_impossible=False)),
        r"qas\[1\]\.answers: is empty; expected an answer, or \"is_impossible\": true",
    ),
    "empty answer": (answered(text=""), r"answers\[0\]\.text: is empty"),
    "start": (answered(answer_start="16"), r"answer_start: is a text; expected a whole number"),
    "fraction": (
        answered(answer_start=16.5),
        r"answer_start: is a number \(16\.5\); expected a whole number",
    ),
    "boolean": (answered(answer_start=True), r"answer_start: is a boolean \(True\); expected a whole"),
    "surrogate": (answered(text="\ud800"), r"answers\[0\]\.text: character 0 is half of a surrogate pair"),
    "json": (b'{"data": [\n  {"title": x}]}', r"squad\.json:2:13: not valid JSON"),
    "encoding": (b'{"data": "\xff"}', r"squad\.json: byte 10 \(0xff\) is not valid UTF-8"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_amiss_is_named_with_file_and_field(tmp_path: Path, case: str) -> None:
    value, message = WRONG[case]
    path = written(tmp_path, value)
    with pytest.raises(DataError, match=message) as error:
        list(questions(path))
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_ids_of_two_files_differ(tmp_path: Path) -> None:
    one, two = written(tmp_path, ROW, "one.json"), written(tmp_path, ROW, "two.json")
    with pytest.raises(DataError, match=r"two\.json: .*'a' is also that of .*one\.json"):
        list(questions([one, two]))


def test_settings_and_sources_are_checked(tmp_path: Path) -> None:
    path = written(tmp_path, ROW)
    with pytest.raises(DataError, match="misplaced is 'nerest'; did you mean 'nearest'"):
        list(questions(path, misplaced="nerest"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="encoding_errors is 'bytes'; allowed: strict, replace"):
        list(questions(path, encoding_errors="bytes"))
    for source in ("sst2/train", "nowhere.json", str(tmp_path / "*.csv"), []):
        with pytest.raises(DataError):
            list(questions(source))


def test_questions_of_several_files_have_ids_of_their_own(tmp_path: Path) -> None:
    row = {"question": "Wer?", "context": CONTEXT}
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text(f"{json.dumps(row)}\n" * 2)
    ids = [question.id for question in asked(tmp_path / "*.jsonl")]
    assert ids == [f"{tmp_path / name}#{n}" for name in ("one.jsonl", "two.jsonl") for n in (1, 2)]
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text(json.dumps({**row, "id": "same"}))
    with pytest.raises(
        DataError, match=r"two\.jsonl:1: id: 'same' is also that of .*one\.jsonl:1; give each"
    ):
        list(asked(tmp_path / "*.jsonl"))


def test_surrogates_and_bytes_are_replaced_where_asked(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(answered(text="\ud800")).encode())
    with pytest.raises(DataError, match="is not in its context"):
        list(questions(path, encoding_errors="replace"))
    raw = json.dumps({"data": [{"title": "?", "paragraphs": []}]}).encode()
    assert list(questions(written(tmp_path, raw.replace(b"?", b"\xff")), encoding_errors="replace")) == []
