"""``wordloom generate`` and ``wordloom chat``: on a terminal, piped, and as JSON."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.generate.tiny_models import tiny_model

from wordloom.generate import Sampling, generate_text, next_tokens, score
from wordloom.text import Tokenizer
from wordloom.weights import save_model

MAIN = [sys.executable, "-c", "from wordloom.cli import main; main()"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(
        ["abcdefgh ijklmnop qrstuvwxyz.\n"], kind="char", special_tokens=()
    )  # nothing ends an answer


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Any:
    return tiny_model("llama", vocab_size=tokenizer.vocab_size, max_seq_len=48)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    save_model(model, folder, tokenizer=tokenizer, generation={"top_k": 7})
    return folder


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def wordloom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The command, run in this process; a subprocess would import torch anew each time."""
    from wordloom.cli import main

    def run(*arguments: object, stdin: str | io.TextIOWrapper = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["wordloom", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        with pytest.raises(SystemExit) as left:
            main()
        return Ran(int(left.value.code or 0), *capsys.readouterr())

    return run


def test_a_continuation_follows_its_prompt(
    wordloom: Callable[..., Ran], checkpoint: Path, model: Any, tokenizer: Tokenizer
) -> None:
    ran = wordloom("generate", checkpoint, "--prompt", "abc", "--seed", 3, "--max-new-tokens", 12)
    text = generate_text(model, tokenizer, "abc", Sampling(seed=3, max_new_tokens=12, top_k=7))
    assert (ran.returncode, ran.stdout) == (0, f"abc{text}\n")
    assert ran.stderr == (
        "given: max_new_tokens 12, seed 3 | generation_config.json: top_k 7 | default: temperature 0.8\n"
    )


@pytest.mark.parametrize("command", [("chat",), ("generate", "--prompt", "-")])
def test_input_that_is_not_utf8_says_so(wordloom, checkpoint, command):
    verb, *rest = command
    piped = io.TextIOWrapper(io.BytesIO(b"ab\n\xff\n"), encoding="utf-8", errors="surrogateescape")
    ran = wordloom(verb, checkpoint, *rest, stdin=piped)
    assert ran.returncode == 2
    assert "wordloom: standard input is not utf-8 (byte 0xff); convert it\n" in ran.stderr


def test_a_prompt_from_stdin_keeps_all_but_its_final_line_break(
    wordloom: Callable[..., Ran], checkpoint: Path
) -> None:
    arguments = ["generate", checkpoint, "--temperature", 0, "--max-new-tokens", 4, "--no-echo"]
    piped = wordloom(*arguments, "--prompt", "-", stdin="ab\ncd \n")
    assert piped.stdout == wordloom(*arguments, "--prompt", "ab\ncd ").stdout


def test_json_holds_completions_and_settings(
    wordloom: Callable[..., Ran], checkpoint: Path, model: Any, tokenizer: Tokenizer
) -> None:
    flags = ["--max-new-tokens", 5, "--samples", 2, "--seed", 9, "--json"]
    ran = wordloom("generate", checkpoint, "--prompt", "ab", "--prompt", "xyz", *flags)
    result = json.loads(ran.stdout)
    sampling = Sampling(seed=9, max_new_tokens=5, samples=2, top_k=7)
    assert [c["text"] for c in result["completions"]] == generate_text(
        model, tokenizer, ["ab", "xyz"], sampling
    )
    assert [c["row"] for c in result["completions"]] == [0, 1, 2, 3]
    assert result["settings"]["top_k"] == {"value": 7, "from": "generation_config.json"}


def test_scores_and_next_tokens(
    wordloom: Callable[..., Ran], checkpoint: Path, model: Any, tokenizer: Tokenizer
) -> None:
    ran = wordloom("generate", checkpoint, "--prompt", "ab", "--score", "cd", "--score", "zz", "--json")
    totals = [scored["total"] for scored in json.loads(ran.stdout)["scores"]]
    assert totals == pytest.approx([s.total for s in score(model, tokenizer, "ab", ["cd", "zz"])], abs=1e-5)
    ran = wordloom("generate", checkpoint, "--prompt", "ab", "--next", 3, "--json")
    best = [token["id"] for token in json.loads(ran.stdout)["next"][0]["next"]]
    assert best == [token.id for token in next_tokens(model, tokenizer, "ab", 3)]
    plain = wordloom("generate", checkpoint, "--prompt", "ab", "--next", 3).stdout.splitlines()
    assert [int(line.split()[2]) for line in plain] == best


def test_a_checkpoint_without_a_tokenizer_takes_ids(
    wordloom: Callable[..., Ran], tmp_path: Path, model: Any
) -> None:
    save_model(model, tmp_path / "bare")
    greedy = ["--temperature", 0, "--max-new-tokens", 4]
    ran = wordloom("generate", tmp_path / "bare", "--ids", "1,2,3", *greedy)
    assert len(ran.stdout.split(",")) == 4
    for flag, said in ((["--specials", "text"], "--specials"), (["--no-echo"], "--no-echo")):
        ran = wordloom("generate", tmp_path / "bare", "--ids", "1,2,3", *greedy, *flag)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert f"--ids are not text and are not echoed: leave out {said}" in ran.stderr
    ran = wordloom("generate", tmp_path / "bare", "--ids", "1,2,3", *greedy, "--stop", "a")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "stop 'a' is text, which token ids alone do not show" in ran.stderr.splitlines()[-1]
    ran = wordloom("generate", tmp_path / "bare", "--prompt", "abc", *greedy)
    assert ran.returncode == 2
    assert "has no tokenizer: give token ids, such as --ids 1,2,3" in ran.stderr


def test_ids_stop_at_the_text_they_stand_for(
    wordloom: Callable[..., Ran], checkpoint: Path, tokenizer: Tokenizer
) -> None:
    flags = ["--ids", "1,2,3", "--seed", 3, "--max-new-tokens", 20, "--json"]
    whole = json.loads(wordloom("generate", checkpoint, *flags).stdout)["completions"][0]
    stop = whole["text"][4:6]
    cut = json.loads(wordloom("generate", checkpoint, *flags, "--stop", stop).stdout)["completions"][0]
    assert (cut["prompt_ids"], cut["finish_reason"]) == ([1, 2, 3], "stop")
    assert cut["text"] == whole["text"].partition(stop)[0]
    assert tokenizer.decode(cut["ids"]) == cut["text"] + stop
    plain = wordloom("generate", checkpoint, *flags[:-1], "--stop", stop)
    assert plain.stdout == ",".join(map(str, cut["ids"])) + "\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--temperature", -1], "temperature is a number from 0"),
        (["--max-new-tokens", 100], "more than max_seq_len 48 holds; ask for at most 45 new tokens"),
        (["--ids", "1,2"], "give --prompt or --ids, not both"),
        (["--next", 3, "--seed", 1], "--score and --next sample nothing: leave out --seed"),
        (["--score", "x", "--stop-id", 1, "--top-k", 2], "leave out --top-k, --stop-id"),
        (["--next", 3, "--no-echo"], "--score and --next sample nothing: leave out --no-echo"),
        (["--past", "wrap"], "unknown past 'wrap'; allowed: error, slide"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_code_2(
    wordloom: Callable[..., Ran], checkpoint: Path, flags: list[object], said: str
) -> None:
    ran = wordloom("generate", checkpoint, "--prompt", "abc", *flags)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert said in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


def test_chat_piped_continues_every_line(
    wordloom: Callable[..., Ran], checkpoint: Path, model: Any, tokenizer: Tokenizer
) -> None:
    flags = ["--temperature", 0, "--max-new-tokens", 6]
    ran = wordloom("chat", checkpoint, *flags, stdin="abc\nxy\n")
    greedy = Sampling(temperature=0, max_new_tokens=6)
    expected = "".join(f"{line}{generate_text(model, tokenizer, line, greedy)}\n" for line in ("abc", "xy"))
    assert (ran.returncode, ran.stdout) == (0, expected)


def test_the_checkpoints_max_new_tokens_is_lowered_to_fit(
    wordloom: Callable[..., Ran], tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:
    save_model(model, tmp_path / "m", tokenizer=tokenizer, generation={"max_new_tokens": 48, "top_k": 1})
    for command in (["generate", tmp_path / "m", "--prompt", "abc"], ["chat", tmp_path / "m"]):
        ran = wordloom(*command, stdin="abc\n")
        assert (ran.returncode, len(ran.stdout.removesuffix("\n"))) == (0, 48)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_chat_on_a_terminal_stops_an_answer_at_ctrl_c_and_leaves_at_ctrl_d(checkpoint: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    flags = ["--past", "slide", "--max-new-tokens", "100000", "--temperature", "1"]
    chat = subprocess.Popen(
        [*MAIN, "chat", str(checkpoint), *flags],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, close_fds=True,
        env={**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    try:
        begun = _read_until(ours, PROMPT)
        assert "given: max_new_tokens 100000" in begun
        assert "samples" not in begun
        os.write(ours, b"abc\n")
        answer = _read_until(ours, EDITED, length=80).split(EDITED, 1)[1]
        os.kill(chat.pid, signal.SIGINT)
        _read_until(ours, PROMPT)
        assert chat.poll() is None
        assert len(answer) > 20
        os.write(ours, b"\x04")
        assert chat.wait(timeout=60) == 0
    finally:
        chat.kill()
        chat.wait()
        os.close(ours)


PROMPT, EDITED = "\x1b[?2004h", "\x1b[?2004l"  # a line editor begins and ends


def _read_until(terminal: int, mark: str, *, length: int = 0, seconds: float = 60) -> str:
    """What the terminal shows until ``mark`` and ``length`` more characters came."""
    seen, end = "", time.monotonic() + seconds
    while mark not in seen or len(seen.split(mark, 1)[1]) < length:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"no {mark!r} in {seen[-1000:]!r}"
        seen += os.read(terminal, 1024).decode(errors="replace")
    return seen
