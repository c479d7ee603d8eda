"""``wordloom chat`` with an assistant: piped, as JSON, with an adapter, and on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.generate.test_cli import MAIN, PROMPT, _read_until
from tests.run.tasks.test_instruction import RECORDS, recipe_in

import wordloom
from wordloom.run import train

GREEDY = ["--temperature", "0", "--max-new-tokens", "12"]


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("assistant")
    recipe = recipe_in(place)
    settings = [
        "train.steps=120",
        "train.learning_rate=1e-2",
        "train.evaluate_every=0",
        "data.template=plain",
    ]
    return train(recipe, settings, out=place / "run", start_from=place / "body").folder


Chat = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def chat(printed: Chat) -> Chat:
    """A function that runs ``wordloom chat FOLDER FLAGS``, and types what is ``said``."""
    return lambda folder, *flags, said: printed("chat", folder, *GREEDY, *flags, stdin=said)


def test_each_piped_line_is_a_turn(chat: Chat, assistant: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    lines = ["Count.", "/retry", "/undo", "Count.", f"/save {saved}"]
    ran = chat(assistant, said="\n".join(lines) + "\n")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "one two three\n" * 3
    assert json.loads(saved.read_text()) == {
        "messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one two three"}]
    }
    loaded = chat(assistant, said=f"/load {saved}\n/tokens\n/temperature 0.5\n/temperature\n/clear\nCount.\n")
    assert f"2 messages of {saved}" in loaded.stderr
    assert "tokens in 2 messages; the context holds 256" in loaded.stderr
    assert loaded.stderr.count("temperature 0.5") == 2


def test_the_system_message_is_shown_changed_and_removed(chat: Chat, assistant: Path) -> None:
    ran = chat(assistant, said='/system\n/system Be.\n/system\n/system ""\n/system\n')
    assert ran.returncode == 0
    told = [line for line in ran.stderr.splitlines() if "system" in line]
    assert told == [
        "system none", "the system message is changed", "system Be.", "the system message is removed",
        "system none",
    ]  # fmt: skip


def test_turns_that_are_dropped_are_told_in_a_pipe(chat: Chat, assistant: Path) -> None:
    ran = chat(assistant, "--when-full", "drop", said="Name the colour. grass and sky and all\n" * 14)
    assert ran.returncode == 0
    assert "the oldest turn was dropped" in ran.stderr


def test_from_python(chat: Chat, assistant: Path) -> None:
    lm = wordloom.load(assistant)
    talk = lm.chat(temperature=0, max_new_tokens=12, system="Be.")
    assert talk.messages[0].content == "Be."
    assert lm.chat().system is None
    assert "".join(lm.chat(temperature=0, max_new_tokens=12).ask("Count.")) == "one two three"


def test_json_has_one_object_for_each_turn(chat: Chat, assistant: Path) -> None:
    asked = [{"content": "Name the\ncolour.\n\nsky"}] * 2
    ran = chat(
        assistant, "--json", "--system", "Be.", said="".join(json.dumps(each) + "\n" for each in asked)
    )
    assert ran.returncode == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [answer["role"] for answer in answers] == ["assistant"] * 2
    assert answers[0]["tokens_read"] > answers[1]["tokens_read"] > 0  # the first turn is not read again
    wrong = chat(assistant, "--json", said="Count.\n")
    assert wrong.returncode == 2
    assert "with --json it is" in wrong.stderr
    for line, says in (
        (
            '{"content": "Count.", "role": "user", "seed": null}',
            "a line of --json has 'role' beside 'content'",
        ),
        (r'{"content": "\ud800"}', "a line of --json holds half of a surrogate pair"),
        ('{"content": "a", "content": "Count."}', "with --json it is"),
    ):
        wrong = chat(assistant, "--json", said=f"{line}\n")
        assert wrong.returncode == 2
        assert says in wrong.stderr


def test_a_byte_order_mark_is_no_part_of_a_question(chat: Chat, assistant: Path, tmp_path: Path) -> None:
    saved, mark = tmp_path / "chat.json", "\ufeff"
    ran = chat(assistant, said=f"{mark}Count.\n/save {saved}\n")
    assert ran.stdout == "one two three\n"
    assert json.loads(saved.read_text())["messages"][0]["content"] == "Count."
    saved.write_text(mark + saved.read_text())
    assert f"2 messages of {saved}" in chat(assistant, said=f"/load {saved}\n").stderr
    assert chat(assistant, "--json", said=mark + '{"content": "Count."}\n').returncode == 0


@pytest.mark.parametrize(("lines", "says"), [
    ("/temprature 1\n", "unknown command /temprature; did you mean '/temperature'"),
    ("/temp 1\n", "unknown command /temp; did you mean '/temperature'?"),
    ("/temperature hot\n", "/temperature takes a number, not 'hot'"),
    ("/retry\n", "there is no answer to replace"),
    ("/save\n", "/save needs the name of a file"),
    ("/load nowhere.json\n", "nowhere.json cannot be read"),
    ("/load {deep}\n", "holds no conversation"),
    ("/load {odd}\n", "holds no conversation"),
    ("/edit\n", "/edit needs the new question"),
    ("/top-k 1.5\n", "/top-k takes a whole number, not '1.5'"),
    ("/undo 3\n", "/undo takes nothing behind it, not '3'"),
    ("/clear x\n", "/clear takes nothing behind it, not 'x'"),
    ("/retry extra\n", "/retry takes nothing behind it, not 'extra'"),
    ("/tokens x\n", "/tokens takes nothing behind it, not 'x'"),
    ("/save a\0b\n", "/save: the name of a file cannot hold the character NUL"),
    ("/load a\0b\n", "/load: the name of a file cannot hold the character NUL"),
    ("/save " + "a" * 300 + "\n", "cannot be written: File name too long"),
    ("/load {tools}\n", "tools.json: message 2 has 'tool_calls' beside 'role' and 'content'; a chat cannot"),
])  # fmt: skip
def test_mistakes_are_one_line(chat: Chat, assistant: Path, lines: str, says: str, tmp_path: Path) -> None:
    deep, odd = tmp_path / "deep.json", tmp_path / "odd.json"
    deep.write_text("[" * 5000)
    called = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{}]}]
    (tmp_path / "tools.json").write_text(json.dumps({"messages": called}))
    lines = lines.replace("{tools}", str(tmp_path / "tools.json"))
    odd.write_text('{"messages": [{"role": "user", "content": null}]}')
    ran = chat(assistant, said=lines.replace("{deep}", str(deep)).replace("{odd}", str(odd)))
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_options_without_effect_are_refused(chat: Chat, assistant: Path) -> None:
    assert (
        "says what a full context does: leave out --past"
        in chat(assistant, "--past", "slide", said="").stderr
    )
    base = chat(assistant.parent / "body", "--system", "Be.", said="")
    assert "a model without a chat template continues text: leave out --system" in base.stderr


def test_an_adapter_answers(chat: Chat, assistant: Path, tmp_path: Path) -> None:
    others = [{**record, "output": record["output"][::-1]} for record in RECORDS]
    recipe = recipe_in(tmp_path)
    (tmp_path / "chat.json").write_text(json.dumps(others))
    settings = ["lora.rank=8", "train.steps=150", "train.learning_rate=2e-2", "train.evaluate_every=0"]
    done = train(recipe, settings, out=tmp_path / "adapter", start_from=assistant)
    answers = []
    for folder, flags in ((assistant, ["--adapter", done.folder]), (done.folder, [])):
        ran = chat(folder, *flags, said="Count.\n")
        answers.append(ran.stdout)
    assert answers[0] == answers[1] != "one two three\n"
    both = chat(done.folder, "--adapter", done.folder, said="Count.\n")
    assert "is an adapter itself" in both.stderr


def test_an_assistant_gets_the_system_message_of_its_training(chat: Chat, tmp_path: Path) -> None:
    settings = ["data.system=Be kind and brief.", "train.evaluate_every=0", "data.template=plain"]
    run = train(recipe_in(tmp_path), settings, out=tmp_path / "run", start_from=tmp_path / "body").folder
    for flags, system in (((), "Be kind and brief."), (("--system", "Be."), "Be."), (("--system", ""), None)):
        file = tmp_path / f"{system}.json"
        assert chat(run, *flags, said=f"Count.\n/save {file}\n").returncode == 0
        first = json.loads(file.read_text())["messages"][0]
        assert first["content"] == ("Count." if system is None else system)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal(assistant: Path) -> None:
    ours, theirs = pty.openpty()
    process: Any = subprocess.Popen(
        [*MAIN, "chat", str(assistant), "--temperature", "0"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, close_fds=True,
        env={**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    try:

        def told(typed: bytes, mark: str) -> str:
            """Type these keys; return what the terminal shows up to the next prompt after ``mark``."""
            os.write(ours, typed)
            seen = _read_until(ours, mark)
            return seen if PROMPT in seen.rsplit(mark, 1)[1] else seen + _read_until(ours, PROMPT)

        begun = _read_until(ours, PROMPT)
        assert "given: temperature 0.0" in begun
        assert "max_new_tokens up to the end of the context" in begun
        assert "max-new-tokens up to the end" in told(b"/max-new-tokens\r", "context")
        assert "one two three" in told(b"Count.\r", "tokens/s")
        told(b"/undo\r", "removed: Count.")
        told(b"/hlep\r", "did you mean '/help'")
        third_line_before = b"\x1b[A\x1b[A\x1b[A\r"
        assert "one two three" in told(third_line_before, "tokens/s")
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
