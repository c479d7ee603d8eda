"""`wordloom evaluate`, `wordloom inspect` and options of others as a user runs them."""

from __future__ import annotations

import json
import math
import os

import pytest
import torch
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import (
    CheckpointError,
    DataError,
    EvaluationError,
    TokenizerError,
    WordloomError,
)
from wordloom.evaluate import perplexity
from wordloom.models import LlamaConfig, build
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXT = "The dog sat on the mat.\n" * 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.train([TEXT], kind="byte")
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_seq_len=32, dim=24, n_layers=2, n_heads=4, hidden_dim=40
    )
    save_model(build(config, generator=torch.Generator().manual_seed(0)), folder, tokenizer=tokenizer)
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, env={"COLUMNS": "80"})


def test_evaluate_prints_what_the_library_computes(checkpoint, tmp_path):
    import wordloom

    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text('{"body": "A cat."}\n{"body": "No cat."}\n')
    result = run("evaluate", checkpoint, tmp_path / "a.txt", "--window", 16, "--stride", 4, "--json")
    printed = json.loads(result.stdout)
    lm = wordloom.load(checkpoint)
    scores = perplexity(lm.model, lm.tokenizer, [TEXT], window=16, stride=4)
    assert printed["scores"] == json.loads(json.dumps(scores.as_dict()))["scores"]
    assert printed["counts"]["bytes"] == len(TEXT)
    more = json.loads(run("evaluate", checkpoint, tmp_path / "b.jsonl", "--field", "body", "--json").stdout)
    assert (more["counts"]["documents"], more["counts"]["bytes"]) == (2, 13)
    first = json.loads(
        run("evaluate", checkpoint, tmp_path / "b.jsonl", "--field", "body", "--first", 1, "--json").stdout
    )
    assert (first["counts"]["documents"], first["counts"]["bytes"]) == (1, 6)
    people = run("evaluate", checkpoint, tmp_path / "a.txt", "--window", 16, "--stride", 4).stdout
    assert f"{scores['bits_per_byte'].value:.4f}" in people
    assert "|window:16|stride:4|start:eos|end:eos|" in people


def test_evaluate_lambada(checkpoint, tmp_path):
    path = tmp_path / "passages.jsonl"
    path.write_text('{"context": "The dog sat on the", "continuation": "mat"}\n' * 2)
    printed = json.loads(run("evaluate", checkpoint, path, "--task", "lambada", "--json").stdout)
    scores = {score["name"]: score["value"] for score in printed["scores"]}
    assert printed["counts"]["passages"] == 2
    assert scores["accuracy"] in (0.0, 1.0)
    assert scores["perplexity"] == pytest.approx(math.exp(printed["counts"]["nats"] / 2))


def test_evaluate_without_a_text_takes_the_recipes_validation(checkpoint, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(checkpoint, folder)
    (tmp_path / "corpus.txt").write_text("x" * 900 + "y" * 100)
    (folder / "recipe.toml").write_text(
        f"""name = "mine"
[data]
train = "{tmp_path / "corpus.txt"}"
validation_fraction = 0.1
[tokenizer]
kind = "byte"
[model]
family = "llama"
[train]
steps = 1
"""
    )
    printed = json.loads(run("evaluate", folder, "--json").stdout)
    assert printed["counts"]["bytes"] == 100
    with pytest.raises(CheckpointError, match=r"has no recipe\.toml that names validation data; give a file"):
        run("evaluate", checkpoint)


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_a_named_set_decides_the_task(checkpoint, tmp_path):
    """blimp is compared in pairs, copa answered by likelihood; --task text reads a set as any text."""
    pairs = json.loads(run("evaluate", checkpoint, "blimp", "--first", "1", "--json").stdout)
    assert (pairs["task"], pairs["counts"]["pairs"]) == ("minimal_pairs", 67)
    assert {score["value"] for score in pairs["scores"]} != {0.0}
    asked = json.loads(run("evaluate", checkpoint, "copa", "--first", "3", "--json").stdout)
    assert (asked["task"], asked["counts"]["questions"]) == ("choices", 3)
    last = json.loads(run("evaluate", checkpoint, "lambada", "--first", "2", "--json").stdout)
    assert (last["task"], last["counts"]["passages"]) == ("lambada", 2)
    text = json.loads(
        run("evaluate", checkpoint, "lambada", "--first", "2", "--task", "text", "--json").stdout
    )
    assert text["task"] == "text"
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"sentence_good": "the cat", "sentence_bad": "cat the"}\n')
    own = json.loads(run("evaluate", checkpoint, path, "--task", "minimal_pairs", "--json").stdout)
    assert [score["name"] for score in own["scores"]] == ["accuracy"]
    with pytest.raises(CheckpointError, match="--task choices needs questions; give a file or a set"):
        run("evaluate", checkpoint, "--task", "choices")


def test_mistakes_are_one_line(checkpoint, tmp_path):
    with pytest.raises(DataError, match="no file"):
        run("evaluate", checkpoint, tmp_path / "none.txt")
    with pytest.raises(CheckpointError, match=r"no checkpoint folder and no preset 'lama-7b'; did you mean"):
        run("inspect", "lama-7b")
    assert (
        "Missing option '--prompt'"
        in CliRunner().invoke(app, ["inspect", str(checkpoint), "attention"]).stderr
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "evaluate CKPT l.jsonl --task lambada --window 4 --stride 2 --start auto --field foo --per-word",
            "last words of passages: leave out --window, --stride, --start, --field, --per-word; "
            "allowed: --first",
        ),
        ("evaluate CKPT --field body", "says what to read and how: leave out --field$"),
        ("inspect CKPT attention --prompt hi --json --head 1", "all layers and heads: leave out --head$"),
        (
            "data prepare a.txt --tokenizer CKPT --validation b.txt --split hash",
            "takes the place of a split: leave out --split$",
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused(checkpoint, arguments, says):
    with pytest.raises(WordloomError, match=says):
        run(*arguments.replace("CKPT", str(checkpoint)).split())


@pytest.mark.parametrize(
    ("arguments", "option"),
    [("parameters --prompt hi --layer 1", "--prompt"), ("attention --prompt hi --context 4", "--context")],
)
def test_a_view_has_options_of_its_own(checkpoint, arguments, option):
    done = CliRunner().invoke(app, ["inspect", str(checkpoint), *arguments.split()])
    assert done.exit_code == 2
    assert f"No such option: {option}" in done.stderr


def test_options_may_stand_before_the_view(checkpoint):
    behind = run("inspect", checkpoint, "attention", "--prompt", "hi", "--json").stdout
    assert run("inspect", checkpoint, "--prompt", "hi", "--json", "attention").stdout == behind


def test_an_empty_text_has_no_score(checkpoint, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(EvaluationError, match="the text is empty"):
        run("evaluate", checkpoint, tmp_path / "empty.txt")


def test_inspect_a_preset_and_a_folder(checkpoint):
    table = json.loads(run("inspect", "llama-65b", "parameters", "--json").stdout)
    assert table["total"] == sum(row["total"] for row in table["components"]) == 65_285_660_672
    people = run("inspect", checkpoint, "--context", 16).stdout
    config = LlamaConfig(vocab_size=258, max_seq_len=32, dim=24, n_layers=2, n_heads=4, hidden_dim=40)
    assert f"{sum(p.numel() for p in build(config).parameters()):,}" in people
    assert "× 16 keys" in people


def test_a_name_that_is_preset_and_folder_is_refused(checkpoint, tmp_path, monkeypatch):
    import shutil

    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, tmp_path / "gpt2")
    with pytest.raises(CheckpointError, match=r"write './gpt2' for the folder"):
        run("inspect", "gpt2")
    assert "Llama" in run("inspect", "./gpt2").stdout


def test_inspect_attention(checkpoint, tmp_path):
    seen = json.loads(run("inspect", checkpoint, "attention", "--prompt", "The dog", "--json").stdout)
    assert seen["tokens"] == list("The dog")
    weights = torch.tensor(seen["weights"])
    assert weights.shape == (2, 4, 7, 7)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 7), atol=1e-5)
    people = run("inspect", checkpoint, "attention", "--prompt", "The dog", "--layer", 0, "--head", 3).stdout
    assert "layer 0, head 3" in people
    assert "██" in people


@pytest.mark.parametrize("view", ["attention", "lens", "memories", "ablate", "positions"])
def test_views_take_special_tokens_as_their_error_says(checkpoint, view, tmp_path):
    tokenizer = Tokenizer.from_pretrained(checkpoint)
    special = tokenizer.id_to_token(257)
    (tmp_path / "text.txt").write_text(f"The dog {special} ran.")
    text = ["--prompt", f"The {special}"] if view == "attention" else ["--file", str(tmp_path / "text.txt")]
    command = ["inspect", str(checkpoint), view, *text, "--json"]
    with pytest.raises(TokenizerError, match=r"\(--specials text, "):
        CliRunner().invoke(app, command, catch_exceptions=False)
    for specials in ("text", "interpret"):
        taken = CliRunner().invoke(app, [*command, "--specials", specials], catch_exceptions=False)
        assert taken.exit_code == 0
        if view == "attention":
            length = 4 + (1 if specials == "interpret" else len(special))
            assert len(json.loads(taken.stdout)["ids"]) == length


def test_chat_takes_special_tokens_as_its_error_says(checkpoint):
    command = ["chat", str(checkpoint), "--max-new-tokens", "2"]
    special = Tokenizer.from_pretrained(checkpoint).id_to_token(257)
    with pytest.raises(TokenizerError, match=r"\(--specials text, "):
        CliRunner().invoke(app, command, input=special, catch_exceptions=False)
    taken = CliRunner().invoke(app, [*command, "--specials", "text"], input=special, catch_exceptions=False)
    assert taken.stdout.startswith(special)
