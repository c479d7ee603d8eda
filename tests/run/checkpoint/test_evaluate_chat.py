"""Evaluate models on conversations, and on questions that ask for a form."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.run.tasks.test_instruction import RECORDS, recipe_in
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data.batches.conversations import conversation_rows
from wordloom.data.rows.conversations import Conversation
from wordloom.evaluate.chat import answer_likelihood
from wordloom.run import train
from wordloom.run.answers import answers
from wordloom.text import Tokenizer
from wordloom.text.chat import Message, encode_chat, end_of_turn, shipped_source, template_of
from wordloom.weights import load_model

runner = CliRunner()


def evaluated(*arguments: object, code: int = 0) -> Any:
    result = runner.invoke(app, ["evaluate", *map(str, arguments), "--json"])
    assert result.exit_code == (1 if code else 0), result.output
    return json.loads(result.stdout) if code == 0 else str(result.exception)


def values(output: dict[str, Any]) -> dict[str, float]:
    return {score["name"]: score["value"] for score in output["scores"]}


@pytest.fixture(scope="module", params=["llama", "rnn"])
def assistant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("assistant")
    recipe = recipe_in(place, request.param)
    train(recipe, ["train.steps=40", "data.split=hash"], out=place / "run", start_from=place / "body")
    return place / "run"


def test_the_held_out_answers_score_as_in_training(assistant: Path, tmp_path: Path) -> None:
    logged = [json.loads(line) for line in (assistant / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in logged if "validation" in str(line)][-1]
    output = evaluated(assistant, "--answers", tmp_path / "a.jsonl", "--max-new-tokens", 7)
    found = values(output)
    assert output["task"] == "answers"
    flat = json.dumps(last)
    assert f"{found['loss']:.4f}"[:5] in flat, (found, flat)
    assert found["bits_per_byte"] == pytest.approx(
        found["loss"] * output["counts"]["tokens"] / math.log(2) / output["counts"]["bytes"]
    )
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(lines) == output["counts"]["conversations"]
    assert sum(line["nats"] for line in lines) == pytest.approx(found["loss"] * output["counts"]["tokens"])
    assert np.mean([line["stopped"] for line in lines]) == pytest.approx(found["stop_rate"])
    assert np.mean([line["repetition"] for line in lines]) == pytest.approx(found["repetition"])
    assert all(line["tokens"] <= 7 for line in lines)
    assert {line["question"] for line in lines} <= {record["instruction"] for record in RECORDS}
    # hash split: equal questions are in one part
    train_questions = {record["instruction"] for record in RECORDS} - {line["question"] for line in lines}
    assert train_questions


def test_the_likelihood_equals_that_of_the_logits(assistant: Path) -> None:
    model, tokenizer = load_model(assistant).eval(), Tokenizer.from_pretrained(assistant)
    template = template_of(tokenizer)
    chats = [
        [Message("user", "Name the colour.", "sky"), Message("assistant", "blue it is")],
        [
            Message("user", "Count."), Message("assistant", ""),
            Message("user", "Again."), Message("assistant", "one two"),
        ],
        [Message("user", "x"), Message("assistant", "y")],
    ]  # fmt: skip
    encoded = [encode_chat(tokenizer, template, chat) for chat in chats]
    by_place = {str(i): one for i, one in enumerate(encoded)}
    rows = conversation_rows(
        lambda each: by_place[each.place],
        [Conversation(tuple(chat), str(i)) for i, chat in enumerate(chats)],
        longest=200,
    )
    for batch_size in (1, 2, None):
        found = answer_likelihood(model, tokenizer, rows, batch_size=batch_size)
        for i, one in enumerate(encoded):
            with torch.no_grad():
                logits = model(torch.tensor([one.ids[:-1]]))[0].double()
            picked = logits.log_softmax(-1).gather(1, torch.tensor(one.ids[1:])[:, None])[:, 0]
            mask = torch.tensor(one.scored[1:])
            assert found.nats[i] == pytest.approx(-float(picked[mask].sum()), rel=1e-5)
            assert found.tokens[i] == sum(one.scored[1:])


def test_answers_do_not_depend_on_the_batch(assistant: Path) -> None:
    model, tokenizer = load_model(assistant).eval(), Tokenizer.from_pretrained(assistant)
    template = template_of(tokenizer)
    ends = [end_of_turn(tokenizer, template)]
    questions = [
        [Message("user", text)] for text in ("Count.", "Name the colour. grass", "?", "Say nothing. " * 3)
    ]
    one, three, all_at_once = (
        list(answers(model, tokenizer, template, questions, ends, max_new_tokens=9, batch_size=size))
        for size in (1, 3, None)
    )
    assert one == three == all_at_once
    for answer in one:
        assert ends[0] not in answer.ids
        assert answer.stopped or len(answer.ids) == 9


def test_other_data_other_templates_and_running_text(assistant: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({"prompt": "Count.", "completion": "one two three"}) + "\n")
    own = values(evaluated(assistant, file))
    other = values(evaluated(assistant, file, "--template", "alpaca"))
    assert own["loss"] != other["loss"]
    body = assistant.parent / "body"
    assert "has no chat template; name one: --template plain" in evaluated(
        body, file, "--task", "answers", code=2
    )
    assert values(evaluated(body, file, "--task", "answers", "--template", "plain"))["loss"] > own["loss"]
    assert "needs the tokens <|im_start|>, <|im_end|>" in evaluated(
        assistant, file, "--template", "chatml", code=2
    )
    long, short = ({"prompt": "Count.", "completion": "one two three " * n} for n in (90, 1))
    file.write_text("".join(json.dumps(each) + "\n" for each in (long, short, short, long, short)))
    if "rnn" not in (assistant / "config.json").read_text():  # an LSTM reads any length
        assert re.search(
            r"more.jsonl:1: has \d+ tokens and the model reads at most 256; give --too-long drop to leave "
            "such records out, or --too-long cut to truncate",
            evaluated(assistant, file, code=2),
        )
        for flags, n, dropped in (((), 3, 2), (("--first", 2), 2, 1), (("--first", 9), 3, 2)):
            output = evaluated(assistant, file, "--too-long", "drop", *flags)
            assert output["counts"]["conversations"] == n
            assert f"conversations left out because they are too long: {dropped}" in output["notes"]
        file.write_text(json.dumps(long))
        assert (
            "the only conversation is longer than the 256 tokens that the model reads at most"
            in evaluated(assistant, file, "--too-long", "drop", code=2)
        )
    (tmp_path / "book.txt").write_text("one two three " * 40)
    assert "running text takes --task text" in evaluated(
        assistant, tmp_path / "book.txt", "--stride", 4, code=2
    )
    assert "perplexity" in values(evaluated(assistant, tmp_path / "book.txt", "--task", "text"))


def test_answers_replace_no_file_that_is_read_and_no_pipe(
    assistant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    template = tmp_path / "mine.jinja"
    template.write_text(shipped_source("plain"))
    data = assistant.parent / "chat.json"  # of the recipe
    own = [assistant / name for name in ("config.json", "recipe.toml", "model.safetensors", "tokenizer.json")]
    before = {path: path.read_bytes() for path in (*own, data, template)}
    for path, says in (
        *((path, "would be read and written") for path in before),
        (Path("pipe"), "'pipe' is a device, a pipe or a socket; name a file"),
        (Path("a" * 250), r"cannot be written \(File name too long\); choose another name"),
        (Path("/proc/x"), "'/proc/x' cannot be written"),
    ):
        said = evaluated(assistant, "--answers", path, "--force", "--template", template, code=2)
        assert re.search(says, said), path
    assert {path: path.read_bytes() for path in before} == before
    assert not (assistant / "answers.jsonl").exists()
    for flags in ([], ["--force"]):  # a file that is not the model's own
        evaluated(assistant, "--answers", assistant / "answers.jsonl", "--first", 1, *flags)


def test_answers_go_to_the_target_of_a_link(assistant: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    evaluated(assistant, "--answers", link, "--force", "--first", 1)
    assert link.is_symlink()
    assert json.loads(target.read_text())["question"]


def test_scores_are_printed_though_a_file_cannot_be_written(
    assistant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("wordloom.run.checkpoint.evaluate_chat.write_text", full)
    arguments = ["evaluate", str(assistant), "--first", "1", "--answers", str(tmp_path / "a.jsonl")]
    done = runner.invoke(app, arguments)
    assert "bits_per_byte" in done.stdout
    assert str(done.exception) == f"'{tmp_path / 'a.jsonl'}' is not written: No space left on device"


def test_questions_that_fill_the_context_are_counted_and_not_answered(
    assistant: Path, tmp_path: Path
) -> None:
    turns = [{"role": role, "content": "Count. " * 3} for _ in range(40) for role in ("user", "assistant")]
    chats = [{"messages": turns}, {"messages": turns[:2]}]
    (tmp_path / "long.json").write_text(json.dumps(chats))
    for n, (chosen, name) in enumerate(((chats, "both"), (chats[:1], "long"))):
        (tmp_path / f"{name}.json").write_text(json.dumps(chosen))
        flags = ["--too-long", "cut", "--answers", tmp_path / f"{name}.jsonl", "--max-new-tokens", 5]
        output = evaluated(assistant, tmp_path / f"{name}.json", *flags)
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert len(lines) == len(chosen)
        assert "loss" in values(output)
        if "rnn" not in str(json.loads((assistant / "config.json").read_text())["model_type"]):
            note = "conversations whose question fills the context, without an answer of the model: 1"
            assert note in output["notes"]
            assert lines[0]["answer"] is None
            assert ("stop_rate" in values(output)) == (n == 0)


def test_questions_that_ask_for_a_form(assistant: Path, tmp_path: Path) -> None:
    file = tmp_path / "i.jsonl"
    output = evaluated(
        assistant, "--task", "instructions", "--first", 31, "--max-new-tokens", 5, "--answers", file
    )
    found = values(output)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 31
    assert found["followed"] == pytest.approx(np.mean([line["followed"] for line in lines]))
    assert found["empty_answers"] == 0
    again = evaluated(assistant, "--task", "instructions", "--first", 31, "--max-new-tokens", 5)
    assert values(again) == found
    assert "makes its own questions; leave out FILE" in evaluated(
        assistant, file, "--task", "instructions", code=2
    )
    assert "exists" in evaluated(assistant, "--task", "instructions", "--answers", file, code=2)
    nowhere = tmp_path / "none" / "i.jsonl"
    assert "there is no folder" in evaluated(
        assistant, "--task", "instructions", "--answers", nowhere, code=2
    )
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    arguments = ("--task", "instructions", "--template", tmp_path / "latin.jinja")
    assert "cannot be read as UTF-8" in evaluated(assistant, *arguments, code=2)
