"""``wordloom plan``: what it prints, its JSON, and the mistakes that it refuses in one line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from wordloom.cli import main
from wordloom.run.planning.gpus import GPUS, gpu_called
from wordloom.run.planning.plan import Hardware, plan_recipe

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Run a command; return its exit code, what it printed, and its errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["wordloom", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return run


def test_a_plan_in_text_and_json(said: Said) -> None:
    given = ["plan", "llama2-13b", "train.shard=full", "--gpus", "16", "--gpu", "a100-40gb"]
    code, text, _ = said(*given)
    assert code == 0
    code, printed, _ = said(*given, "--json")
    assert code == 0
    plan = json.loads(printed)
    assert "llama2-13b: 13,015,864,320 parameters, on 16 × a100-40gb in 2 machines" in text
    total = plan["bytes_per_rank"]["total"]
    for line in (f"{total / 2**30:,.2f}   does not fit", "usable", "one after another", "hides with"):
        assert line in text
    assert max(map(len, text.splitlines())) <= 80
    assert all(line == line.rstrip() for line in text.splitlines())
    for change in plan["changes"]:
        assert change["setting"] in text
    assert f"{plan['tokens_per_second']:,.0f} tokens per second" in text


def test_own_hardware_is_a_gpu_with_its_figures(said: Said) -> None:
    own = ["--memory", "80", "--flops", "989", "--bandwidth", "450", "--network", "50"]
    given = ["plan", "gpt2-xl", "--gpus", "16", "--json"]
    mine, known = (json.loads(said(*given, *each)[1]) for each in (own, ["--gpu", "h100-80gb"]))
    assert mine == known
    alone = said("plan", "gpt2", "--memory", "8", "--flops", "20")
    assert alone[0] == 0
    assert "network" not in alone[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["gpt2"], "give --gpu (a100-40gb"),
        (["gpt2", "--memory", "80", "--gpus", "4"], "missing: --flops, --bandwidth"),
        (["gpt2", "--gpu", "h300"], "unknown GPU 'h300'"),
        (["gpt2", "--gpu", "l4-24gb", "--network", "3"], "no machine beside it: leave out --network"),
        (["gpt2", "--gpu", "h100", "train.sharp=full"], "unknown key 'train.sharp'"),
        (["mrpc", "--gpu", "h100"], "'classification'"),
        (["gpt3", "--gpu", "h100"], "no recipe or preset is called 'gpt3'; did you mean 'gpt"),
        (["gpt2", "--gpu", "h100", "--memory", "inf"], "--memory is inf; give a number"),
        (["gpt2", "--gpu", "h100", "--flops", "nan"], "--flops"),
        (["gpt2", "--gpu", "h100", "--gpus", "1000000000"], "less than or equal to 1000000"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(said: Said, given: list[str], words: str) -> None:
    code, out, err = said("plan", *given)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_library_says_what_the_command_says(said: Said) -> None:
    plan = plan_recipe("gpt2", hardware=Hardware(gpu=gpu_called("l4"), gpus=2))
    printed = json.loads(said("plan", "gpt2", "--gpus", "2", "--gpu", "l4", "--json")[1])
    assert printed == json.loads(json.dumps(plan.as_dict()))


def test_the_help_names_every_gpu(said: Said) -> None:
    text = " ".join(said("plan", "--help")[1].split())
    for name in GPUS:
        assert name in text.replace("- ", "-")
