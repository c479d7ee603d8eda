"""Other kinds of attention for a model that exists: evaluate, train --from, convert and the views."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.conftest import write_corpus, write_recipe
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import WordloomError
from wordloom.models import BertConfig, GPT2Config, LlamaConfig, RNNConfig, TaskConfig, build
from wordloom.run import train
from wordloom.text import Tokenizer
from wordloom.weights import load_config, load_model, save_model
from wordloom.weights.configs import require_equal_settings

TEXT = "The dog sat on the mat. A cat ran to the dog and sat there too.\n" * 8


def run(*arguments: Any) -> Any:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if isinstance(done.exception, WordloomError):
        raise done.exception
    assert done.exit_code == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "text.txt").write_text(TEXT)
    tokenizer = Tokenizer.train([TEXT], kind="byte")
    size: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "max_seq_len": 32, "dim": 24, "n_layers": 3}
    torch.manual_seed(0)
    for name, config in {
        "llama": LlamaConfig(n_heads=4, hidden_dim=40, **size),
        "grouped": LlamaConfig(n_heads=4, n_kv_heads=2, head_dim=10, attention_bias=True, **size),
        "gpt2": GPT2Config(n_heads=4, **size),
        "rnn": RNNConfig(cell="lstm", vocab_size=tokenizer.vocab_size, dim=8, n_layers=1),
    }.items():
        model = build(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0, 0.3)
        save_model(model, folder / name, tokenizer=tokenizer)
    return folder


def loss_of(printed: str) -> float:
    return next(score["value"] for score in json.loads(printed)["scores"] if score["name"] == "loss")


def test_evaluate_with_another_pattern(folder: Path, tmp_path: Path) -> None:
    """The score is that of a model saved with the pattern, and a note names both kinds."""
    asked = (folder / "text.txt", "--window", 32, "--json")
    for name, pattern in (("llama", "band:4"), ("gpt2", "block:5,full"), ("grouped", "sinks:1:3")):
        full = run("evaluate", folder / name, *asked).stdout
        banded = run("evaluate", folder / name, *asked, "--attention", pattern).stdout
        model = load_model(folder / name)
        other = type(model)(type(model.config)(**{**vars(model.config), "attention": pattern}))
        other.load_state_dict(model.state_dict())
        save_model(other, tmp_path / name, tokenizer=Tokenizer.from_pretrained(folder / name))
        assert loss_of(run("evaluate", tmp_path / name, *asked).stdout) == loss_of(banded) != loss_of(full)
        assert json.loads(banded)["notes"] == [f"attention {pattern}, and full in training"]
        for score in json.loads(banded)["scores"]:
            assert f"|attention:{pattern}|v:" in score["signature"]
        assert "|attention:" not in full
    with pytest.raises(WordloomError, match="a model of family 'rnn' has no attention by position; these"):
        run("evaluate", folder / "rnn", *asked, "--attention", "band:4")
    with pytest.raises(WordloomError, match="unknown attention 'bond:4'"):
        run("evaluate", folder / "llama", *asked, "--attention", "bond:4")


def test_a_run_takes_another_pattern_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    corpus = write_corpus(tmp_path)
    first = train(write_recipe(tmp_path, corpus), ["train.steps=2"], out=tmp_path / "first").folder
    bare = tmp_path / "bare.toml"
    bare.write_text(f'[data]\ntrain = "{corpus}"\n[train]\nsteps = 2\nseq_len = 16\nbatch_size = 4\n')
    for setting in ("model.attention=band:4,full", "model.attention=['band:4', 'full']"):
        capsys.readouterr()
        tuned = train(bare, [setting], out=tmp_path / "tuned", start_from=first, force=True)
        assert f"attention   full in {first}, now band:4,full" in capsys.readouterr().err
        assert load_config(tuned.folder).attention == "band:4,full"
    again = train(bare, out=tmp_path / "again", start_from=tuned.folder)
    assert "attention   " not in capsys.readouterr().err
    assert load_config(again.folder).attention == "band:4,full"
    assert load_config(first).attention == "full"


def test_an_impossible_model_is_refused_before_data_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    recipe = write_recipe(tmp_path, write_corpus(tmp_path))
    for settings, says in (
        (["model.attention=linformer:4"], "use it in BERT or RoBERTa"),
        (
            ["model.attention=performer:4", "model.dropout=0.1"],
            "has no attention weights for a dropout of 0.1",
        ),
        (["model.attention=band:0"], "W of 'band:W' is a whole number from 1"),
        (["model.n_kv_heads=3"], "is not a multiple of n_kv_heads 3"),
        (["model.global_projections=true"], "'global_projections' belongs to bert"),
        (
            ["model.attention=performer:4", "model.dropout=0", "train.attention_backend=flash"],
            "attention_backend 'flash' computes full attention, and attention is 'performer:4'",
        ),
    ):
        with pytest.raises(WordloomError, match=says):
            train(recipe, settings, out=tmp_path / "out")
        assert "order:" not in capsys.readouterr().err
        assert not (tmp_path / "cache" / "tokens").exists()


def test_approximations_from_training_to_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    corpus = write_corpus(tmp_path)
    settings = ["train.steps=2", "model.attention=performer:8,band:4", "model.attention_dropout=0"]
    first = train(write_recipe(tmp_path, corpus), settings, out=tmp_path / "first").folder
    assert json.loads((first / "config.json").read_text())["attention"] == "performer:8,band:4"
    plain = loss_of(run("evaluate", first, corpus, "--json").stdout)
    other = run("evaluate", first, corpus, "--attention", "performer:64", "--json").stdout
    assert loss_of(other) != plain
    assert "attention performer:64, and performer:8,band:4 in training" in other
    shown = run("inspect", first, "parameters").stdout
    assert "attention performer:8,band:4: as many operations as" in shown
    assert run("inspect", first, "pattern", "--tokens", 3).stdout.splitlines()[1:4] == [
        "██····", "████··", "██████"
    ]  # fmt: skip
    for attention in ("linformer:3", "band:3", "nystrom:2"):
        for has_head in (True, False):
            model = build(BertConfig(
                vocab_size=11, max_seq_len=16, dim=8, n_heads=2, n_layers=2, attention=attention,
                masked_lm_head=has_head,
            )).eval()  # fmt: skip
            save_model(model, tmp_path / "bert", overwrite=True)
            again, tokens = load_model(tmp_path / "bert"), torch.randint(0, 11, (2, 9))
            kind = json.loads((tmp_path / "bert" / "config.json").read_text())["model_type"]
            assert kind == "wordloom-bert"
            assert torch.equal(again(tokens).last_hidden_state, model(tokens).last_hidden_state)


@pytest.mark.parametrize("merge", ["mean", "first", "random"])
def test_heads_are_merged_as_asked(folder: Path, tmp_path: Path, merge: str) -> None:
    for name, before, after in (("llama", 4, 2), ("llama", 4, 1), ("grouped", 2, 1)):
        out = tmp_path / f"{name}-{after}"
        said = run("convert", folder / name, "--kv-heads", after, "--merge", merge, "--out", out).stdout
        assert (
            f"heads of keys and values: {before} in {folder / name}, {after} in {out}, by '{merge}'" in said
        )
        old, new = load_model(folder / name), load_model(out)
        assert (new.config.kv_heads, new.config.n_heads) == (after, old.config.n_heads)
        E, groups = new.config.head_width, before // after
        for key, tensor in new.state_dict().items():
            was = old.state_dict()[key]
            if "k_proj" not in key and "v_proj" not in key:
                assert torch.equal(tensor, was), key
                continue
            for head in range(after):
                mine = tensor[head * E : (head + 1) * E]
                theirs = was[head * groups * E : (head + 1) * groups * E].view(groups, E, *was.shape[1:])
                if merge == "random":
                    assert mine.dim() == 1 or not any(torch.equal(mine, one) for one in theirs)
                else:
                    wanted = theirs[0] if merge == "first" else theirs.mean(dim=0)
                    torch.testing.assert_close(mine, wanted)
        assert json.loads((out / "kv_heads.json").read_text())["merge"] == merge
        run("evaluate", out, folder / "text.txt", "--json")
    tokens = torch.randint(0, 250, (1, 20))
    if merge == "mean":  # equal heads lose nothing
        same = load_model(folder / "llama")
        E = same.config.head_width
        for block in same.blocks:
            for layer in (block.attention.k_proj, block.attention.v_proj):
                layer.weight.data = layer.weight.data[:E].repeat(4, 1)
        save_model(same, tmp_path / "same")
        run("convert", tmp_path / "same", "--kv-heads", 1, "--out", tmp_path / "one")
        torch.testing.assert_close(load_model(tmp_path / "one")(tokens), same(tokens), atol=1e-4, rtol=1e-4)


def test_heads_that_cannot_be_merged(folder: Path, tmp_path: Path) -> None:
    for name, heads, says in (
        ("llama", 3, r"has 4 heads of keys and values, which 3 new ones cannot stand for; allowed: 1, 2$"),
        ("llama", 4, "which 4 new ones"),
        ("llama", 0, "which 0 new ones"),
        ("gpt2", 1, "holds a gpt2, whose heads cannot share keys and values; give a LLaMA"),
        ("rnn", 1, "holds a rnn, whose heads"),
    ):
        with pytest.raises(WordloomError, match=says):
            run("convert", folder / name, "--kv-heads", heads, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
    run("convert", folder / "llama", "--kv-heads", 2, "--out", tmp_path / "out")
    with pytest.raises(WordloomError, match="--force"):
        run("convert", folder / "llama", "--kv-heads", 1, "--out", tmp_path / "out")
    run("convert", folder / "llama", "--kv-heads", 1, "--out", tmp_path / "out", "--force")
    assert load_config(tmp_path / "out").kv_heads == 1
    asked = ["convert", str(folder / "llama"), "--kv-heads", "1", "--out", str(tmp_path / "none")]
    with pytest.raises(WordloomError, match="merge 'mean' draws no weights: leave out --seed"):
        run(*asked, "--seed", 3)
    done = CliRunner().invoke(app, [*asked, "--merge", "random", "--seed", str(2**63)])
    assert done.exit_code == 2
    assert "less than or equal to 9223372036854775807" in done.stderr
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(WordloomError, match="holds a run, which --resume would go on with; choose another"):
        run("convert", folder / "llama", "--kv-heads", 1, "--out", tmp_path / "run", "--force")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("")
    with pytest.raises(WordloomError, match="holds files that are no checkpoint; choose another --out"):
        run("convert", folder / "llama", "--kv-heads", 1, "--out", tmp_path / "notes")
    run("convert", folder / "llama", "--kv-heads", 2, "--out", tmp_path / "two")
    config = load_config(folder / "llama")
    untied = replace(config, tie_embeddings=not config.tie_embeddings)
    with pytest.raises(
        WordloomError, match=rf"; set model\.tie_embeddings={str(config.tie_embeddings).lower()}$"
    ):
        require_equal_settings(config, untied, folder / "llama", may_differ=())
    with pytest.raises(WordloomError, match=r"has n_kv_heads 2, the model has 4; set model\.n_kv_heads=2"):
        require_equal_settings(load_config(tmp_path / "two"), config, tmp_path / "two", may_differ=())


def test_a_model_with_a_head_keeps_it(tmp_path: Path) -> None:
    body = LlamaConfig(vocab_size=31, dim=24, n_layers=1, n_heads=4, attention="band:3")
    model = build(TaskConfig(body=body, task="classification", id2label={"0": "no", "1": "yes"}))
    save_model(model, tmp_path / "m")
    run("convert", tmp_path / "m", "--kv-heads", 1, "--out", tmp_path / "one")
    new = load_model(tmp_path / "one")
    assert (new.config.task, new.config.body.kv_heads, new.config.body.attention) == (
        "classification", 1, "band:3"
    )  # fmt: skip


def test_the_view_of_patterns(folder: Path, tmp_path: Path) -> None:
    shown = run(
        "inspect", folder / "llama", "pattern", "--attention", "band:2+global:1", "--tokens", 4
    ).stdout
    assert shown.splitlines() == [
        "layers 0 to 2: queries (down), keys (across), █ band:2, ▓ global:1",
        "██······", "████····", "▓▓████··", "▓▓··████",
        "2.2 keys per query of 4 tokens", "",
    ]  # fmt: skip
    printed = run("inspect", "transformer-base", "pattern", "--attention", "block:3,full", "--json").stdout
    assert [part["layers"] for part in json.loads(printed)["patterns"]] == [
        "encoder layers 0, 2, 4", "encoder layers 1, 3, 5",
        "decoder layers 0, 2, 4", "decoder layers 1, 3, 5",
    ]  # fmt: skip
    for ending in ("png", "svg", "pdf"):
        path = tmp_path / f"p.{ending}"
        run("inspect", "bert-tiny", "pattern", "--attention", "bigbird:2:1:2", "--plot", path)
        assert path.stat().st_size > 1000
    many = "+".join(["band:1", *(f"random:1:{seed}" for seed in range(11))])
    shown = run("inspect", "llama-15m", "pattern", "--attention", many, "--tokens", 24).stdout
    marks = [part.split()[0] for part in shown.splitlines()[0].split(", ")[2:]]
    assert len(set(marks)) == len(marks) == 12
    with pytest.raises(WordloomError, match="has no attention by position"):
        run("inspect", "lstm-ptb-small", "pattern")


def test_costs_count_what_the_pattern_sees() -> None:
    def costs(*more: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("inspect", "llama-15m", *more, "--json").stdout)
        return found

    far = costs("--attention", "band:64", "--context", 100_000)  # a text of bounded keys has no end
    assert far["keys_per_query"] == pytest.approx(64, rel=1e-3)
    with pytest.raises(WordloomError, match="context 100000 is above max_seq_len 256"):
        costs("--context", 100_000)
    full, banded = costs(), costs("--attention", "band:64")
    keys = (64 * 256 - 64 * 63 // 2) / 256
    assert (full["keys_per_query"], banded["keys_per_query"]) == (256, keys)
    ratio = banded["flops_per_token"]["attention"] / full["flops_per_token"]["attention"]
    assert ratio == pytest.approx(keys / 256, rel=1e-4)
    own = [next(k for k in each["kv_cache_bytes_of_context"]) for each in (full, banded)]
    assert own[1]["bf16"] * 4 == own[0]["bf16"]
    mixed = costs("--attention", "sinks:4:60,full", "--context", 128)
    assert mixed["kv_cache_bytes_of_context"][0]["bf16"] == own[0]["bf16"] // 256 * (64 + 128) // 2
    assert banded["attention_activation_bytes"] == full["attention_activation_bytes"]
    shown = run("inspect", "llama-15m", "--attention", "band:64").stdout
    assert "attention band:64: 56.1 of 256 keys per query" in shown
    assert BertConfig().attention == "full"
