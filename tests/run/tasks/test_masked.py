"""Masked language models through the whole run: learnt, stopped and resumed, read by transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.run.test_train import lines

from wordloom.data.batches.masked import MaskedBatch
from wordloom.errors import CheckpointError, ConfigError, DataError, RecipeError
from wordloom.objectives import masked_lm
from wordloom.run import TextEncoder, load_as, train
from wordloom.text import Tokenizer
from wordloom.training import Trainer
from wordloom.weights import load_config, load_model

RECIPE = """
description = "tests"
seed = 3
[data]
train = "{folder}/text.txt"
separator = "blank-line"
split = "hash"
validation_fraction = 0.2
sentences = "line"
[tokenizer]
kind = "wordpiece"
vocab_size = 90
[model]
family = "bert"
dim = 64
n_layers = 1
n_heads = 2
dropout = 0.05
[train]
objective = "masked_lm+next_sentence"
steps = 24
batch_size = 16
seq_len = 24
learning_rate = 1e-2
device = "cpu"
precision = "fp32"
log_every = 5
evaluate_every = 12
save_every = 8
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of lines that count up and down in letters of the document's own kind."""
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    draw = random.Random(5)
    documents = []
    for number in range(60):
        letters = "abcdefgh" if number % 2 else "stuvwxyz"
        made = []
        for _ in range(draw.randint(6, 12)):
            at = draw.randrange(8)
            made.append(" ".join(letters[(at + k) % 8] for k in range(draw.randint(4, 9))))
        documents.append("\n".join(made))
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n")
    path = tmp_path / "masked.toml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).state_dict()


def test_both_tasks_are_learnt_and_transformers_reads_the_result(recipe: Path, tmp_path: Path) -> None:
    given = ["train.steps=300", "train.evaluate_every=300", "train.save_every=0", "train.learning_rate=3e-3",
             "model.dropout=0.0", "train.optimizer=muon"]  # fmt: skip
    result = train(recipe, given, out=tmp_path / "run")
    assert result.metrics["masked_accuracy"] > 0.6  # of 16 letters; the neighbours tell which
    assert result.metrics["next_sentence_accuracy"] > 0.65  # half of the others are of the same kind
    assert result.metrics["loss"] == pytest.approx(
        result.metrics["masked_loss"] + result.metrics["next_sentence_loss"]
    )
    theirs, info = transformers.BertForPreTraining.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not info["missing_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    inputs = tokenizer("a b c [MASK] e f", "g h a b", return_tensors="pt")
    logits = theirs.eval()(**inputs)
    place = int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero())
    assert tokenizer.decode(logits.prediction_logits[0, place].argmax()) == "d"
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert "the second text follows in half of the " in str(ledger["train"]["notes"])


@pytest.mark.parametrize("objective", ["masked_lm", "masked_lm+next_sentence"])
def test_a_resumed_run_ends_with_the_same_bits(
    recipe: Path, tmp_path: Path, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"train.objective={objective}", "train.long_seq_len=40", "train.long_share=0.34"]
    if objective == "masked_lm":
        given.append("data.sentences=none")
    whole = train(recipe, given, out=tmp_path / "whole")
    assert whole.step == 24
    stop = Trainer.train_step

    def step(self: Any) -> Any:
        record = stop(self)
        if self.step == 13:
            self.stop()
        return record

    part = tmp_path / "part"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", step)
        assert train(recipe, given, out=part).stopped
    assert train(recipe, given, out=part, resume=True).step == 24
    assert lines(tmp_path / "whole") == lines(part)
    for name in ("model.safetensors", "config.json", "recipe.toml"):
        assert (tmp_path / "whole" / name).read_bytes() == (part / name).read_bytes(), name


def test_what_is_told_of_a_step_is_of_its_own_rows(recipe: Path, tmp_path: Path) -> None:
    """Of 24 steps of 16 rows the last 8 read 40 tokens a row, the others 24."""
    given = ["train.long_seq_len=40", "train.long_share=0.34", "train.save_every=0"]
    result = train(recipe, given, out=tmp_path / "run")
    plan, whole = result.plan, 16 * 16 * 24 + 8 * 16 * 40
    written = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    told = [line for line in map(json.loads, written) if line["kind"] == "train"]
    assert [line["tokens"] for line in told] == [1920, 3840, 5760, 6144 + 4 * 640, whole]
    for before, line in zip([0, 1920, 3840, 5760, 8704], told, strict=True):
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(line["tokens"] - before, rel=0.05)
    _, longer = plan.costs.longer
    steps = 16 * 24 * plan.costs.flops_per_token, 16 * 40 * longer.flops_per_token
    assert plan.work(24) == (whole, 16 * steps[0] + 8 * steps[1])
    assert plan.work(18) == (6144 + 2 * 640, 16 * steps[0] + 2 * steps[1])
    assert told[-1]["flop_utilisation"] * told[-1]["seconds"] * plan.peak_flops == pytest.approx(
        4 * steps[1], rel=0.05
    )
    assert f"24 steps = {whole:,} tokens" in "".join(plan.lines())
    assert "per step of 384 tokens, at the end " in "".join(plan.lines())


def test_micro_batches_make_the_same_step(recipe: Path, tmp_path: Path) -> None:
    """Each term over the count of the whole step, however it is cut."""
    given = ["model.dropout=0.0", "train.steps=3", "train.save_every=0", "train.evaluate_every=0"]
    # AdamW divides by the size of the gradient: the rounding of one near 0 would be a whole step
    given.append("train.epsilon=1e-6")
    train(recipe, given, out=tmp_path / "one")
    train(recipe, [*given, "train.micro_batch_size=5"], out=tmp_path / "many")
    one, many = weights(tmp_path / "one"), weights(tmp_path / "many")
    for key, tensor in one.items():
        torch.testing.assert_close(tensor, many[key], rtol=1e-4, atol=2e-5)


def test_the_loss_is_transformers_own(recipe: Path, tmp_path: Path) -> None:
    train(recipe, ["train.steps=2", "train.save_every=0", "train.evaluate_every=0"], out=tmp_path / "run")
    model: Any = load_model(tmp_path / "run")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "run").eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 30, (4, 12), generator=generator)
    targets = torch.where(torch.rand(4, 12, generator=generator) < 0.3, tokens, -100)
    segments = (torch.arange(12) > 5).long().expand(4, 12)
    is_next = torch.tensor([True, False, True, True])
    ours = masked_lm(model, MaskedBatch(tokens, segments, None, targets, is_next))
    mean = (ours.total / ours.count).sum()
    wanted = theirs(
        input_ids=tokens, token_type_ids=segments, labels=targets, next_sentence_label=(~is_next).long()
    ).loss
    torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-6)


def test_an_empty_placeholder_is_a_token_whose_vector_is_zero(recipe: Path, tmp_path: Path) -> None:
    given = ["masking.kind=replace", "masking.placeholder=empty", "masking.scored=all", "train.steps=2",
             "train.save_every=0", "train.evaluate_every=0"]  # fmt: skip
    train(recipe, given, out=tmp_path / "run")
    model: Any = load_model(tmp_path / "run")
    empty = model.config.empty_id
    assert empty is not None
    stored = load_file(tmp_path / "run/model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert not stored[empty].any()  # though it is tied to the head, and learnt with as such
    assert stored[empty + 1].any()
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path / "run").eval()
    x = torch.tensor([[6, empty, 9]])
    with torch.no_grad():
        torch.testing.assert_close(
            model.lm_head(model.mlm_hidden(model.hidden(x))), theirs(x).logits, rtol=1e-4, atol=1e-5
        )


def test_what_learnt_with_the_empty_placeholder_is_asked_with_it(recipe: Path, tmp_path: Path) -> None:
    given = ["masking.kind=replace", "masking.placeholder=empty", "train.steps=2",
             "train.objective=masked_lm", "data.sentences=none",
             "train.save_every=0", "train.evaluate_every=0"]  # fmt: skip
    train(recipe, given, out=tmp_path / "run")
    encoder = load_as(TextEncoder, tmp_path / "run")
    assert len(encoder.fill("the [EMPTY] of the [EMPTY]")) == 2
    with pytest.raises(DataError, match=r"the text has no \[EMPTY\] to fill in"):
        encoder.fill("the [MASK] of the king")
    score = encoder.pseudo_perplexity(["the king"])["pseudo_loss"].value
    ids = encoder.tokenizer.encode_ids("the king")
    cls, sep, empty = encoder.tokenizer.cls_id, encoder.tokenizer.sep_id, encoder.config.empty_id
    nats = []
    for place, wanted in enumerate(ids, start=1):
        tokens = torch.tensor([[cls, *ids, sep]])
        tokens[0, place] = empty
        with torch.no_grad():
            model = encoder.model
            logits = model.lm_head(model.mlm_hidden(model.hidden(tokens)))[0, place]
        nats.append(float(-logits.log_softmax(-1)[wanted]))
    assert score == pytest.approx(sum(nats) / len(ids), rel=1e-5)


def test_who_goes_on_by_another_placeholder_is_asked_with_that(recipe: Path, tmp_path: Path) -> None:
    masks = ["train.steps=2", "train.objective=masked_lm", "data.sentences=none",
             "train.save_every=0", "train.evaluate_every=0"]  # fmt: skip
    names = '["[PAD]","[UNK]","[CLS]","[SEP]","[MASK]","[EMPTY]"]'  # also where [EMPTY] is named already
    empty = [*masks, "masking.kind=replace", "masking.placeholder=empty", f"tokenizer.special_tokens={names}"]
    train(recipe, empty, out=tmp_path / "first")
    place = Tokenizer.from_pretrained(tmp_path / "first").token_to_id("[EMPTY]")
    assert load_config(tmp_path / "first").empty_id == place
    train(recipe, masks, out=tmp_path / "second", start_from=tmp_path / "first")
    assert load_config(tmp_path / "second").empty_id is None
    assert load_as(TextEncoder, tmp_path / "second").fill("the [MASK] of the king")
    train(recipe, empty, out=tmp_path / "third", start_from=tmp_path / "second")
    assert load_config(tmp_path / "third").empty_id == place
    assert load_as(TextEncoder, tmp_path / "third").fill("the [EMPTY] of the king")


def test_heads_that_a_checkpoint_lacks_begin_afresh_and_are_named(
    recipe: Path, tmp_path: Path, capsys: Any
) -> None:
    given = ["train.steps=2", "train.save_every=0", "train.evaluate_every=0"]
    first = tmp_path / "first"
    train(recipe, [*given, "train.objective=masked_lm", "data.sentences=none"], out=first)
    assert not load_config(first).pooler
    train(recipe, given, out=tmp_path / "second", start_from=first)
    assert "fresh: next_sentence, pooler" in capsys.readouterr().err
    assert load_config(tmp_path / "second").next_sentence_head
    with pytest.raises(CheckpointError, match="n_heads 2, the model has 4"):
        train(recipe, [*given, "model.n_heads=4"], out=tmp_path / "third", start_from=first)


def test_a_batch_of_short_rows_may_have_nothing_to_learn(recipe: Path, tmp_path: Path) -> None:
    given = [
        "train.objective=masked_lm",
        "data.sentences=none",
        "masking.kind=replace",
        "masking.mask_words=0.02",
    ]
    few = ["train.batch_size=2", "train.seq_len=10", "train.log_every=1", "train.save_every=0"]
    run = train(
        recipe, [*given, *few, "masking.mask_share=none", "train.evaluate_every=0"], out=tmp_path / "run"
    )
    assert run.step == 24
    losses = [line["loss"] for line in lines(run.folder) if line["kind"] == "train"]
    assert 0.0 in losses
    assert max(losses) > 1.0


def test_a_longer_budget_would_move_the_longer_rows(recipe: Path, tmp_path: Path) -> None:
    few = ["train.long_seq_len=40", "train.long_share=0.5", "train.evaluate_every=0", "train.save_every=2"]
    train(recipe, [*few, "train.steps=4"], out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"another recipe \(train\.steps 4 -> 6\)"):
        train(recipe, [*few, "train.steps=6"], out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["model.family=gpt2"], RecipeError, "does not read in both directions.*take bert or roberta"),
        (["train.objective=causal_lm", "data.sentences=none"], RecipeError, "reads texts in both directions"),
        (["train.long_seq_len=20"], RecipeError, "long_seq_len 20 is not above train.seq_len 24"),
        (["train.long_seq_len=40", "train.minutes=1"], RecipeError, "needs a budget in train.steps"),
        (["model.max_seq_len=20"], RecipeError, "rows of 24 tokens are longer than model.max_seq_len 20"),
        (["model.masked_lm_head=true"], RecipeError, "follows from train.objective"),
        (["model.family=roberta"], ConfigError, "has no next_sentence_head"),
        (
            ["model.family=roberta", "train.objective=masked_lm", "data.sentences=none"],
            CheckpointError,
            "pads with token 1",
        ),
        (["model.type_vocab_size=1"], RecipeError, "two segments and model.type_vocab_size is 1"),
        (["masking.share=0"], RecipeError, "masking.share"),
        (["masking.mask_share=0.95"], RecipeError, "their sum is 1 at most"),
        (["tokenizer.kind=bpe", "tokenizer.vocab_size=300"], DataError, r"no mask token"),
        (["data.document_mask=true"], RecipeError, "is not a setting of train.objective"),
        (["train.objective=masked_lm"], RecipeError, "data.sentences is not a setting of"),
        (["data.separator=none"], DataError, "one document"),
    ],
)
def test_mistakes_in_one_line(
    recipe: Path, tmp_path: Path, given: list[str], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        train(recipe, given, out=tmp_path / "run")
    assert "\n" not in str(raised.value)
