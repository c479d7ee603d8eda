"""GPT's start, delimiter and extract in a training run: new rows of the vocabulary, kept in the folder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.data.batches.test_task_tokens import gpt, llama
from tests.run.bodies import SHAPE, loaded, write_body

import wordloom
from wordloom.data import choice_rows
from wordloom.data.batches.framed import TASK_TOKENS
from wordloom.errors import CheckpointError, DataError, RecipeError
from wordloom.models import GPTConfig, LlamaConfig, build
from wordloom.progress import TrainingProgress
from wordloom.run import train
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.weights import load_model, save_model

ROWS = [("the cat sat", "a dog ran", "yes", "1"), ("it is wet", "the dog sat", "no", "0")]
PAIRS = [row[:2] for row in ROWS]
RECIPE = """
name = "marked"
[data]
train = "{place}/rows.tsv"
text_column = ["one", "two"]
task_tokens = true
validation_fraction = 0
[train]
objective = "classification"
steps = 2
seq_len = 48
batch_size = 4
learning_rate = 3e-3
precision = "fp32"
"""
SIZE: dict[str, Any] = {**SHAPE, "max_seq_len": 48}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT and a LLaMA without a head, and rows of two texts."""
    place = tmp_path_factory.mktemp("marked")
    for name, tokenizer, config in (
        ("gpt", gpt(), lambda size: GPTConfig(**size)),
        ("llama", llama(), lambda size: LlamaConfig(**size, tie_embeddings=False)),
    ):
        model = build(config({**SIZE, "vocab_size": tokenizer.vocab_size}))
        save_model(model, place / name, tokenizer=tokenizer)
    lines = ["one\ttwo\tlabel\tscore", *("\t".join(row) for row in ROWS * 2)]
    (place / "rows.tsv").write_text("\n".join(lines) + "\n")
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    return place


def trained(place: Path, kind: str, out: Path, *changes: str) -> str:
    said = Console(file=io.StringIO(), width=200)
    recipe = str(place / "recipe.toml")
    train(recipe, changes, out=out, start_from=place / kind, progress=TrainingProgress(said), force=True)
    return said.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_new_rows_are_told_learnt_and_read_by_transformers(kind: str, place: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    weight = "train.language_model_weight=0.5"
    said = trained(place, kind, tmp_path / "run", weight)
    size = {"gpt": gpt, "llama": llama}[kind]().vocab_size
    rows = f"token_embedding[{size}:{size + 3}]"
    both = f"{rows}, lm_head[{size}:{size + 3}]" if kind == "llama" else rows
    assert f"fresh: {both}, classifier" in said
    before = load_model(place / kind).token_embedding.weight
    after = load_model(tmp_path / "run").body.token_embedding.weight
    assert (len(before), len(after)) == (size, size + 3)
    torch.testing.assert_close(after[:size], before, atol=0.02, rtol=0)  # two steps from where they were
    assert after[size:].std() > 0.01

    classifier = wordloom.load(tmp_path / "run")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    for row in (*PAIRS, ("the cat",)):
        given = tokenizer(*row, return_tensors="pt")
        assert given["input_ids"][0, -1] == tokenizer.convert_tokens_to_ids(TASK_TOKENS[-1])
        with torch.no_grad():
            theirs = model(input_ids=given["input_ids"]).logits.softmax(-1)[0]
        ours = torch.from_numpy(classifier.probabilities([row])[0]).float()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    # such a folder is begun with as it is
    train(str(place / "recipe.toml"), out=tmp_path / "again", start_from=tmp_path / "run")
    assert wordloom.load(tmp_path / "again").tokenizer.vocab_size == size + 3


def test_similarity_and_choices_are_read_between_them(place: Path, tmp_path: Path) -> None:
    alike = ('train.objective="regression"', "data.both_orders=true", 'data.label_column="score"')
    trained(place, "gpt", tmp_path / "alike", *alike)
    one, other = loaded(TextRegressor, tmp_path / "alike").score([PAIRS[0], PAIRS[0][::-1]])
    assert one == pytest.approx(other, abs=1e-5)
    rows = [{"query": a, "choices": [b, "it is wet"], "gold": 0} for a, b in PAIRS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = ('train.objective="multiple_choice"', f'data.train="{tmp_path}/rows.jsonl"')
    trained(place, "llama", tmp_path / "chosen", *chosen, "data.text_column=none")
    chooser = loaded(MultipleChoice, tmp_path / "chosen")
    questions = list(choice_rows(str(tmp_path / "rows.jsonl")))
    tokens, _, attend = chooser.read(questions).batches.batch(0, 2).inputs
    start, delimiter, extract = map(chooser.tokenizer.token_to_id, TASK_TOKENS)
    assert (tokens[..., :2] == torch.tensor([chooser.tokenizer.bos_id, start])).all()
    assert ((tokens == delimiter).sum(-1) == 1).all()
    last = attend.sum(-1, keepdim=True) - 1
    assert (tokens.take_along_dim(last, -1) == extract).all()


def test_what_takes_none_is_told(place: Path, tmp_path: Path) -> None:
    write_body(place / "bert", [text for pair in PAIRS for text in pair], max_seq_len=48)
    with pytest.raises(RecipeError, match=r"data\.task_tokens is for a causal model, which a bert is not"):
        trained(place, "bert", tmp_path / "no")
    with pytest.raises(DataError, match=r"no token that ends a text.*data\.task_tokens = true"):
        trained(place, "gpt", tmp_path / "no", "data.task_tokens=false")
    with pytest.raises(RecipeError, match=r"data\.task_tokens is not a setting of train\.objective 'token_"):
        trained(place, "gpt", tmp_path / "no", 'train.objective="token_classification"')
    with pytest.raises(CheckpointError, match=r"token_embedding\.weight of"):
        trained(place, "llama", tmp_path / "no", "model.vocab_size=400", "data.task_tokens=false")
