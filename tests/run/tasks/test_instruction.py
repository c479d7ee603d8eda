"""Instruction tuning: a base model learns to answer in a chat template, and to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.run.bodies import ends_alike_when_cut_short
from transformers import AutoModelForCausalLM, AutoTokenizer

from wordloom.errors import (
    ChatError,
    CheckpointError,
    DataError,
    NonFiniteError,
    RecipeError,
    WordloomError,
)
from wordloom.generate import Sampling, complete
from wordloom.models import GPT2Config, LlamaConfig, RNNConfig, build
from wordloom.run import train
from wordloom.run.checkpoint.kinds import next_command
from wordloom.text import Tokenizer
from wordloom.text.chat import Message, encode_chat, end_of_turn, shipped_source, template_of
from wordloom.weights import load_model, save_model

RECORDS = [
    {"instruction": "Name the colour.", "input": "grass", "output": "green"},
    {"instruction": "Name the colour.", "input": "sky", "output": "blue it is"},
    {"instruction": "Count.", "output": "one two three"},
    {"instruction": "Say nothing.", "output": ""},
] * 5
TEXTS = [text for record in RECORDS for text in record.values()]
RECIPE = """
name = "chat"
seed = 3
[data]
train = "{place}/chat.json"
validation_fraction = 0.2
[train]
objective = "instruction"
steps = 6
seq_len = 192
batch_size = 3
learning_rate = 3e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
"""
FAMILIES: dict[str, Any] = {
    "llama": lambda V: LlamaConfig(
        vocab_size=V, dim=24, n_layers=2, n_heads=3, n_kv_heads=1, max_seq_len=256
    ),
    "gpt2": lambda V: GPT2Config(vocab_size=V, dim=20, n_layers=1, n_heads=2, max_seq_len=192),
    "rnn": lambda V: RNNConfig(vocab_size=V, dim=48, hidden_dim=64, n_layers=1, cell="lstm"),
}


_BERT = ["model.family=bert", "model.dim=8", "model.n_heads=2", "train.seq_len=64"]


def recipe_in(place: Path, family: str = "llama", *, specials: list[str] | None = None) -> str:
    (place / "chat.json").write_text(json.dumps(RECORDS))
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    tokenizer = Tokenizer.train(TEXTS, kind="bpe", vocab_size=300, special_tokens=specials)
    model = build(FAMILIES[family](tokenizer.vocab_size), generator=torch.Generator().manual_seed(1))
    save_model(model, place / "body", tokenizer=tokenizer, overwrite=True)
    return str(place / "recipe.toml")


def losses(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "validation_loss" in line or "bits_per_byte" in str(line)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_causal_family_learns_to_answer_and_to_stop(family: str, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, family)
    steps = 400 if family == "rnn" else 150
    settings = [
        f"train.steps={steps}",
        "train.learning_rate=1e-2",
        "train.schedule=constant",
        "train.evaluate_every=0",
    ]
    done = train(recipe, settings, out=tmp_path / "run", start_from=tmp_path / "body")
    assert done.metrics["loss"] < 0.1
    assert done.metrics["bits_per_byte"] > 0
    model, tokenizer = load_model(done.folder), Tokenizer.from_pretrained(done.folder)
    template = template_of(tokenizer)
    end = end_of_turn(tokenizer, template)
    for record in RECORDS[:4]:
        question = Message("user", record["instruction"], record.get("input", ""))
        ids = encode_chat(tokenizer, template, [question], prompt=True).ids
        (answer,) = complete(
            model, tokenizer, [ids], Sampling(temperature=0, max_new_tokens=40), eos_ids=[end]
        )
        assert answer.text.strip() == record["output"]
        assert answer.finish_reason == "eos"


@pytest.mark.parametrize("template", ["alpaca", "chatml", "llama2", "plain"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_transformers_answers_alike(family: str, template: str, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, family)
    done = train(
        recipe,
        [f"data.template={template}", "train.steps=20"],
        out=tmp_path / "run",
        start_from=tmp_path / "body",
    )
    theirs = AutoModelForCausalLM.from_pretrained(done.folder)
    their_tokenizer = AutoTokenizer.from_pretrained(done.folder)
    model, tokenizer = load_model(done.folder), Tokenizer.from_pretrained(done.folder)
    end = end_of_turn(tokenizer, template_of(tokenizer))
    assert end in torch.tensor(theirs.generation_config.eos_token_id).flatten().tolist()
    assert (tokenizer.id_to_token(end) == "<|im_end|>") == (template == "chatml")
    chat = [
        Message("user", "Count."),
        Message("assistant", "one"),
        Message("user", "Name the colour.\n\nsky"),
    ]
    ids = encode_chat(tokenizer, template_of(tokenizer), chat, prompt=True).ids
    given = [{"role": message.role, "content": message.content} for message in chat]
    read = their_tokenizer.apply_chat_template(given, add_generation_prompt=True, return_tensors="pt")
    assert read["input_ids"][0].tolist() == ids
    written = theirs.generate(**read, do_sample=False, max_new_tokens=12)[0, len(ids) :].tolist()
    sampling = Sampling(temperature=0, max_new_tokens=12)
    (answer,) = complete(model, tokenizer, [ids], sampling, eos_ids=[end])
    assert answer.ids == written


@pytest.mark.parametrize("packing", ["true", "false"])
def test_a_run_cut_short_ends_with_the_same_bits(packing: str, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    Path(recipe).write_text(RECIPE.format(place=tmp_path).replace("[train]", f"packing = {packing}\n[train]"))
    train(recipe, out=tmp_path / "run", start_from=tmp_path / "body")
    assert ends_alike_when_cut_short(recipe, tmp_path, tmp_path / "run")


def test_from_scratch_with_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    settings = [
        "tokenizer.kind=byte",
        "model.family=llama",
        "model.dim=16",
        "model.n_layers=1",
        "model.n_heads=2",
    ]
    done = train(recipe, [*settings, "data.template=chatml"], out=tmp_path / "run")
    tokenizer = Tokenizer.from_pretrained(done.folder)
    assert tokenizer.token_to_id("<|im_start|>") == tokenizer.vocab_size - 2
    assert load_model(done.folder).config.vocab_size == tokenizer.vocab_size
    again = train(recipe, out=tmp_path / "again", start_from=done.folder)  # the tokenizer keeps its template
    assert (again.folder / "chat_template.jinja").read_text() == (
        done.folder / "chat_template.jinja"
    ).read_text()
    assert Tokenizer.from_pretrained(again.folder).vocab_size == tokenizer.vocab_size


def test_the_log_counts_what_is_scored_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_in(tmp_path)
    body = tmp_path / "body"
    with pytest.raises(
        DataError, match=r"chat.json, item 1: has \d+ tokens and train.seq_len allows 20; raise it"
    ):
        train(recipe, ["train.seq_len=20", "data.template=alpaca"], out=tmp_path / "run", start_from=body)
    long = {"instruction": "Count.", "output": "one two three " * 50}
    (tmp_path / "chat.json").write_text(json.dumps([RECORDS[0], long, *RECORDS[1:]]))
    settings = ["train.seq_len=60", "data.too_long=drop", "train.sample_every=3", "data.system=Be kind."]
    train(recipe, settings, out=tmp_path / "run", start_from=body)
    said = capsys.readouterr().err
    assert "left out: 1 conversation is longer than train.seq_len and is left out" in said
    assert "4 answers have no text" in said
    assert "tokens are scored, those of answers" in said
    assert "% of the positions hold tokens" in said
    assert "step 3 writes:\nName the colour. -> " in said
    assert next_command(tmp_path / "run") == f"wordloom chat {tmp_path / 'run'}"


def test_a_sample_has_the_system_message_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, prompts = recipe_in(tmp_path), list[list[int]]()

    def answer(model: Any, tokenizer: Tokenizer, ids: list[list[int]], *rest: Any, **settings: Any) -> Any:
        prompts.extend(ids)
        return complete(model, tokenizer, ids, *rest, **settings)

    monkeypatch.setattr("wordloom.run.tasks.instruction.complete", answer)
    settings = ["train.sample_every=3", "train.sample_prompt=Count.", "data.system=Be kind."]
    done = train(recipe, settings, out=tmp_path / "run", start_from=tmp_path / "body")
    text = Tokenizer.from_pretrained(done.folder).decode(prompts[0])
    assert "Be kind." in text
    assert "Count." in text


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    with pytest.raises(
        CheckpointError, match="starts from runs/none, which does not exist; train that model"
    ):
        train(recipe, out=tmp_path / "run", start_from="runs/none")
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("*.toml"))
    with pytest.raises(
        CheckpointError, match=r"train that model first \(wordloom train assistant-base\), or"
    ):
        train("assistant-small", out=tmp_path / "run", start_from="runs/assistant-base")
    with pytest.raises(CheckpointError, match=r"first \(wordloom demo --minutes 3\), or"):
        train("first-chat", out=tmp_path / "run", start_from="runs/demo-3min")


def test_a_damaged_base_is_named(tmp_path: Path) -> None:
    recipe, file = recipe_in(tmp_path), tmp_path / "body" / "model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values()))[0] = float("nan")
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(
        NonFiniteError, match=r"\S+ is not finite before the first step; the weights that the run"
    ):
        train(recipe, ["data.template=plain"], out=tmp_path / "run", start_from=tmp_path / "body")


def test_the_base_task_is_measured_and_rehearsed(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    (tmp_path / "old.txt").write_text("the sky is blue and grass is green. " * 60)
    settings = [f"old_task.train={tmp_path}/old.txt", "train.rehearsal_share=0.5", "old_task.seq_len=64"]
    done = train(recipe, settings, out=tmp_path / "run", start_from=tmp_path / "body")
    found = json.loads((done.folder / "old_task.json").read_text())
    assert found["before"] != found["after"]


@pytest.mark.parametrize(("settings", "error", "says"), [
    (["data.template=chatlm"], ChatError, "the chat template 'chatlm' is neither one of Wordloom"),
    (["data.template=none.jinja"], ChatError, "nor a .jinja file that exists"),
    (["data.template=''"], ChatError, "the chat template '' is neither one of Wordloom"),
    (["train.seq_len=300", "data.train=no.json"], RecipeError,
     "rows of 300 tokens are longer than model.max_seq_len 256"),
    (["model.dim=32"], RecipeError, r"the model is that of \S+body, and the recipe has model.dim; leave"),
    (["train.objective=instructions", "data.template=plain"], RecipeError,
     "'train.objective' cannot be 'instructions'; did you mean 'instruction'"),
    (["data.train={place}/none.json"], RecipeError, "data.train: holds no conversations; give at least one"),
    (["data.validation={place}/none.json"], RecipeError, "data.validation: holds no conversations; give at"),
    (["data.validation_fraction=0.01"], RecipeError, "0.01 of 20 conversations is none; give more of them"),
    (["data.validation_fraction=0", "train.evaluate_every=0", "data.split=hash"], RecipeError,
     "data.split has no effect without data.validation_fraction"),
    (["data.validation_fraction=0.99", "data.split=hash"], RecipeError,
     "data.validation_fraction 0.99 holds out all 20 conversations, and none is left to train on; lower it"),
    (["train.seq_len=5", "data.too_long=drop"], DataError,
     "all 16 conversations are longer than the 5 tokens that train.seq_len allows, and would be left out"),
    (["data.document_mask=true"], RecipeError, "document_mask"),
    (_BERT, WordloomError, "reads texts in both directions and writes none"),
])  # fmt: skip
def test_mistakes_are_named(settings: list[str], error: type[Exception], says: str, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    (tmp_path / "none.json").write_text("[]")
    settings = [setting.replace("{place}", str(tmp_path)) for setting in settings]
    with pytest.raises(error, match=says):
        train(recipe, settings, out=tmp_path / "run", start_from=tmp_path / "body")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_tokenizer_without_eos_needs_a_template_with_its_own_end(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, specials=["<unk>"])
    with pytest.raises(
        ChatError, match="ends answers with eos, and the tokenizer has no eos token; take chatml"
    ):
        train(recipe, out=tmp_path / "run", start_from=tmp_path / "body")
    train(recipe, ["data.template=chatml"], out=tmp_path / "run", start_from=tmp_path / "body")


def test_a_template_with_a_date_gives_the_same_run_on_every_day(tmp_path: Path) -> None:
    recipe, file = recipe_in(tmp_path), tmp_path / "dated.jinja"
    file.write_text("{{ strftime_now('%d %b %Y') }}" + shipped_source("plain"))
    done = train(recipe, [f"data.template={file}"], out=tmp_path / "run", start_from=tmp_path / "body")
    assert "|date:2024-07-26|" in (done.folder / "metrics.jsonl").read_text()
    tokenizer = Tokenizer.from_pretrained(done.folder)
    text = template_of(tokenizer).render([Message("user", "Count.")]).text
    assert text.startswith("26 Jul 2024")


def test_a_template_that_refuses_a_record_names_it(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    file = tmp_path / "strict.jinja"
    refusal = "{% if 'Count' in m['content'] %}{{ raise_exception('no') }}{% endif %}"
    file.write_text(f"{{% for m in messages %}}{refusal}{{{{ m['content'] + eos_token }}}}{{% endfor %}}")
    with pytest.raises(ChatError, match=r"chat.json, item 3: the chat template refuses these messages: no"):
        train(recipe, [f"data.template={file}"], out=tmp_path / "run", start_from=tmp_path / "body")
