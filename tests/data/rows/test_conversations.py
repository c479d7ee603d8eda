"""Conversations and preferences in every layout, from every format; mistakes are named by record."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wordloom.data.rows.conversations import EQUAL, Preference, conversations, preferences
from wordloom.errors import DataError
from wordloom.text.chat import Message

USER, ANSWER, SYSTEM = Message("user", "Add.", "1 and 2"), Message("assistant", "3"), Message("system", "Be.")
LAYOUTS: list[tuple[dict[str, Any], list[Message]]] = [
    ({"instruction": "Add.", "input": "1 and 2", "output": "3"}, [USER, ANSWER]),
    ({"instruction": "Add.", "output": "3"}, [Message("user", "Add."), ANSWER]),
    ({"instruction": "Add.", "input": None, "response": "3"}, [Message("user", "Add."), ANSWER]),
    ({"instruction": "Add.", "input": "1 and 2", "output": "3", "system": "Be."}, [SYSTEM, USER, ANSWER]),
    (
        {"instruction": "Add.", "output": "3", "history": [["Hi", "Yo"]]},
        [Message("user", "Hi"), Message("assistant", "Yo"), Message("user", "Add."), ANSWER],
    ),
    (
        {"instruction": "Say nothing.", "output": ""},
        [Message("user", "Say nothing."), Message("assistant", "")],
    ),
    ({"prompt": "Add.", "completion": "3"}, [Message("user", "Add."), ANSWER]),
    ({"prompt": "Add.", "completion": "3", "system": "Be."}, [SYSTEM, Message("user", "Add."), ANSWER]),
    (
        {
            "system": "Be.",
            "conversations": [{"from": "human", "value": "Add."}, {"from": "gpt", "value": "3"}],
        },
        [SYSTEM, Message("user", "Add."), ANSWER],
    ),
    (
        {
            "messages": [
                {"role": "developer", "content": "Be."},
                {"role": "user", "content": "Add."},
                {"role": "assistant", "content": [{"type": "text", "text": "3"}]},
            ]
        },
        [SYSTEM, Message("user", "Add."), ANSWER],
    ),
    (
        {
            "conversations": [
                {"from": "system", "value": "Be."},
                {"from": "human", "value": "Add."},
                {"from": "gpt", "value": "3"},
            ]
        },
        [SYSTEM, Message("user", "Add."), ANSWER],
    ),
    (
        {
            "prompt": [{"role": "user", "content": "Add."}],
            "completion": [{"role": "assistant", "content": "3"}],
        },
        [Message("user", "Add."), ANSWER],
    ),
]


def write(folder: Path, records: list[Any], name: str = "chat.jsonl") -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(records), path)
    elif name.endswith(".json"):
        path.write_text(json.dumps(records))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.json", "chat.parquet"])
def test_every_layout_is_read_from_every_format(name: str, tmp_path: Path) -> None:
    for i, (record, messages) in enumerate(LAYOUTS):
        if name.endswith(".parquet") and "developer" in str(record):
            continue  # a column holds texts or lists, not both
        path = write(tmp_path, [record], f"{i}-{name}")
        (found,) = conversations(path)
        assert list(found.messages) == messages, record
    if not name.endswith(".parquet"):  # whose rows share their columns
        path = write(tmp_path, [record for record, _ in LAYOUTS], name)
        assert [list(found.messages) for found in conversations(path)] == [each for _, each in LAYOUTS]
    instances = {"instruction": "Add.", "instances": [{"input": "1 and 2", "output": "3"}, {"output": "?"}]}
    both = list(conversations(write(tmp_path, [instances], f"instances-{name}")))
    assert [each.messages[0].input for each in both] == ["1 and 2", ""]


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.parquet"])
def test_preferences_in_every_layout(name: str, tmp_path: Path) -> None:
    prompt, good, bad = [USER], ANSWER, Message("assistant", "4")
    asked, right, wrong = (
        [{"role": message.role, "content": message.content}] for message in (USER, good, bad)
    )
    bare = (Message("user", "Add."),)
    for i, (record, messages) in enumerate([
        ({"instruction": "Add.", "input": "1 and 2", "chosen": "3", "rejected": "4"}, tuple(prompt)),
        ({"prompt": "Add.", "chosen": "3", "rejected": "4"}, bare),
        ({"prompt": asked, "chosen": right, "rejected": wrong}, bare),
        ({"prompt": asked, "chosen": asked + right, "rejected": asked + wrong}, bare),
        ({"chosen": asked + right, "rejected": asked + wrong}, bare),
    ]):  # fmt: skip
        (found,) = preferences(write(tmp_path, [record], f"{i}-{name}"))
        assert found == Preference(messages, good, bad, found.place)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            {"text": "a"},
            "item 2: is no conversation; a record has instruction with .*; the fields there are 'text'",
        ),
        (
            {"instruction": "a"},
            "item 2: output: is missing; an instruction needs its answer; the fields there are",
        ),
        ({"instruction": " ", "output": "b"}, "item 2: instruction: is empty; expected text"),
        ({"instruction": "a", "output": 3}, r"item 2: output: is a number \(3\); expected text"),
        ({"instruction": "a", "input": ["x"], "output": "b"}, "item 2: input: is a list; expected text"),
        (
            {"instruction": "a", "output": "b", "history": [["x"]]},
            r"item 2: history\[0\]: is not a pair of texts",
        ),
        ({"prompt": "a"}, "item 2: completion: is missing; a prompt needs its answer"),
        ({"messages": []}, "item 2: ends without an answer"),
        ({"messages": [{"role": "user", "content": "a"}]}, "item 2: ends without an answer"),
        (
            {"messages": [{"role": "usr", "content": "a"}]},
            r"messages\[0\].role: is 'usr'; did you mean 'user'",
        ),
        ({"messages": [{"role": "user"}]}, r"item 2: messages\[0\].content: is missing; expected text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            r"content\[0\].type: is 'image'; a message",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}] * 2},
            "item 2: message 2 is of role 'user' where 'assistant' must follow",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a"}]},
            "item 2: message 1 is of role 'assistant' where 'user' must follow",
        ),
        (
            {"messages": [{"role": "system", "content": "a"}, {"role": "system", "content": "a"}]},
            "item 2: message 2 is of role 'system' where 'user' must follow",
        ),
        (
            {"instruction": "\ud800", "output": "b"},
            "item 2: instruction: character 0 is half of a surrogate pair",
        ),
        (["a"], "item 2: holds a list; each item must be a JSON object"),
        (
            {"instruction": "a", "output": "", "response": "b"},
            "item 2: response: stands beside 'output', and only one of them can be read; leave the other out",
        ),
        (
            {"instruction": "a", "output": "b", "instances": [{"output": "c"}]},
            "item 2: output: stands beside 'instances'",
        ),
        (
            {"system": "a", "messages": [{"role": "system", "content": "b"}]},
            "item 2: message 2 is of role 'system' where 'user' must follow",
        ),
        ({"messages": [], "instruction": "a", "output": "b"}, "instruction: stands beside 'messages'"),
        ({"instruction": "a", "output": "b", "prompt": "c", "completion": "d"}, "prompt: stands beside"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]},
                ]
            },
            r"messages\[1\].tool_calls: calls a tool, and a conversation has texts alone; leave it out",
        ),
        (
            {"instruction": "a", "output": "b", "history": [["c", "\ud800"]]},
            r"item 2: history\[0\]: character 0 is half of a surrogate pair",
        ),
    ],
)
def test_a_mistake_is_named_by_file_record_and_field(record: Any, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, [LAYOUTS[0][0], record], "chat.json")
    with pytest.raises(DataError, match=says) as caught:
        list(conversations(path))
    assert str(caught.value).startswith(f"{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"instruction": "a", "output": "b"}, "chosen: is missing; a preference has chosen and rejected"),
        ({"instruction": "a", "chosen": "b", "rejected": " "}, "rejected: is empty"),
        ({"instruction": "a", "prompt": "d", "chosen": "b", "rejected": "c"}, "prompt: stands beside 'instr"),
        ({"chosen": "b", "rejected": "c"}, "message 1 is of role 'assistant' where 'user' must follow"),
        (
            {
                "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "c"}],
            },
            "rejected: follows other messages than chosen",
        ),
    ],
)
def test_a_mistake_in_a_preference_is_named(record: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says):
        list(preferences(write(tmp_path, [record])))


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_texts_that_are_not_utf8(nested: bool, tmp_path: Path) -> None:
    path, raw = tmp_path / "chat.parquet", [b"Add.", b"a\xffb"]
    texts = pa.array(raw, pa.binary()).view(pa.string())
    answers = pa.array(["3", "4"])
    if nested:
        roles = pa.array(["user", "assistant"] * 2)
        contents = pa.array([b"Add.", b"3", b"a\xffb", b"4"], pa.binary()).view(pa.string())
        entries = pa.StructArray.from_arrays([roles, contents], ["role", "content"])
        table = pa.table({"messages": pa.ListArray.from_arrays([0, 2, 4], entries)})
    else:
        table = pa.table({"instruction": texts, "output": answers})
    pq.write_table(table, path)
    with pytest.raises(
        DataError, match=r"row 2: column '\w+' is not valid UTF-8 .*; convert the file, or say"
    ):
        list(conversations(path))
    found = [each.messages[0].content for each in conversations(path, encoding_errors="replace")]
    assert found == ["Add.", "a\ufffdb"]


@pytest.mark.parametrize(("values", "kind", "says"), [
    ([b"a"], pa.binary(), "row 1: instruction: is a value of bytes; expected text"),
    ([[("a", "b")]], pa.map_(pa.string(), pa.string()), "row 1: instruction: is a list; expected text"),
])  # fmt: skip
def test_columns_of_other_types_are_named(values: Any, kind: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.parquet"
    pq.write_table(pa.table({"instruction": pa.array(values, kind), "output": ["b"]}), path)
    with pytest.raises(DataError, match=says):
        list(conversations(path))
    entries = pa.array([[("role", "user")]], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"messages": entries}), path)
    with pytest.raises(DataError, match=r"messages\[0\]: is a key and value of a map; expected an object"):
        list(conversations(path))


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.parquet"
    pq.write_table(pa.table([["a"], ["b"], ["c"]], names=["instruction", "output", "output"]), path)
    with pytest.raises(DataError, match=r"chat.parquet: has the column 'output' twice; give each another"):
        list(conversations(path))


def test_a_field_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"instruction": "a", "output": "b", "output": "c"}\n')
    with pytest.raises(DataError, match=r"chat.jsonl:1: the field 'output' occurs twice in one object; give"):
        list(conversations(path))


def test_halves_of_surrogate_pairs_are_replaced_in_every_field(tmp_path: Path) -> None:
    half = "\ud800"
    record = {"instruction": half, "input": half, "output": half, "system": half, "history": [[half, half]]}
    (found,) = conversations(write(tmp_path, [record]), encoding_errors="replace")
    texts = [text for message in found.messages for text in message[1:]]
    assert set(texts) == {"\ufffd", ""}


def test_a_set_for_another_task_is_refused() -> None:
    with pytest.raises(DataError, match=r"'sst2/train' is for .*, not for instructions"):
        list(conversations("sst2/train"))


def test_all_named_sets_are_read(data_folder: Path) -> None:
    numbers = {
        "instruction-1100": 1100, "alpaca-demo": 999, "gsm8k": 7473, "gpteacher-codegen": 4535,
        "gpteacher-roleplay": 1923, "self-instruct-eval": 252, "preference-1100": 1100,
    }  # fmt: skip
    for name, number in numbers.items():
        found = list(conversations(name))
        assert len(found) == number, name
        assert all(each.messages[-1].role == "assistant" for each in found)
        assert re.search(r"(, item|:)\s?1$", found[0].place)
    assert len(list(conversations("alpaca-seeds"))) >= 175  # some have several instances
    counts = Counter[str]()
    pairs = list(preferences("preference-1100", counts=counts))
    assert len(pairs) + counts[EQUAL] == 1100
    assert 0 < counts[EQUAL] < 20
    assert all(pair.chosen != pair.rejected for pair in pairs)
