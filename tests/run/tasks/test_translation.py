"""Pairs of texts through the whole run: trained, stopped and resumed, translated in order."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tests.run.test_train import lines
from torch.nn import functional as F
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.nn.head import linear_cross_entropy
from wordloom.run import Translator, load_as, train

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "sechs", "sieben", "acht"]
ENGLISH = ["zero", "one", "two", "three", "four", "six", "seven", "eight"]

RECIPE = """
description = "tests"
seed = 3
[data]
train = "{folder}/train.de"
targets = "{folder}/train.en"
validation = "{folder}/val.tsv"
source_column = 1
target_column = 2
[tokenizer]
kind = "word"
split = "whitespace"
[model]
family = "{family}"
dim = 32
{model}
[train]
objective = "translation"
epochs = 6.5
batch_size = 1
batch_tokens = 400
learning_rate = 1e-2
label_smoothing = 0.1
warmup_steps = 10
device = "cpu"
precision = "fp32"
log_every = 5
evaluate_every = 20
save_every = 10
"""
MODELS = {
    "transformer": "n_layers = 1\nn_heads = 2\nhidden_dim = 32\nmax_seq_len = 32\ndropout = 0.05",
    "seq2seq": 'hidden_dim = 32\nattention = "general"\ncell = "gru"\ndropout = 0.05',
}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Numbers in German and in English, one word for one."""
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    draw = random.Random(5)
    pairs = []
    for _ in range(900):
        words = [draw.randrange(len(NUMBERS)) for _ in range(draw.randint(1, 7))]
        pairs.append((" ".join(NUMBERS[w] for w in words), " ".join(ENGLISH[w] for w in words)))
    (tmp_path / "train.de").write_text("".join(f"{source}\n" for source, _ in pairs[:800]))
    (tmp_path / "train.en").write_text("".join(f"{target}\n" for _, target in pairs[:800]))
    (tmp_path / "val.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs[800:]))

    def make(family: str = "transformer") -> Path:
        path = tmp_path / f"{family}.toml"
        path.write_text(RECIPE.format(folder=tmp_path, family=family, model=MODELS[family]))
        return path

    return make


def test_other_tools_translate_as_we_do_by_what_the_folder_says(recipe, tmp_path):
    """Texts end with the end token, and generate() searches with its settings; none of it is given here."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    run = train(recipe(), ["train.epochs=3"], out=tmp_path / "run").folder
    texts = ["eins zwei", "vier sechs acht null", "drei"]
    ours = [found[0].text for found in load_as(Translator, run).translate(texts)]
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForSeq2SeqLM.from_pretrained(run)
    rows = [tokenizer(text, return_tensors="pt") for text in texts]
    made = [model.generate(row["input_ids"], attention_mask=row["attention_mask"]) for row in rows]
    assert [tokenizer.decode(ids[0], skip_special_tokens=True) for ids in made] == ours
    assert len(set(ours)) > 1


@pytest.mark.parametrize("family", MODELS)
def test_numbers_are_translated(recipe, tmp_path, family):
    result = train(recipe(family), ["train.epochs=60"], out=tmp_path / "run")
    rows = lines(result.folder)
    losses = [row["loss"] for row in rows if row["kind"] == "evaluate"]
    assert losses[-1] < 0.3 < losses[0]
    translator = wordloom.load(result.folder)
    texts = ["eins zwei drei", "", "acht acht vier null", "   ", "sechs"]
    found = [best[0].text for best in translator.translate(texts, batch_size=2)]
    assert found == ["one two three", "", "eight eight four zero", "", "six"]
    assert found == [best[0].text for best in translator.translate(iter(texts), read_ahead=1)]
    assert [best[0].text for best in translator.translate(texts[:1], beams=1)] == found[:1]
    three = next(translator.translate(texts[:1], n_best=3))
    assert [one.score for one in three] == sorted((one.score for one in three), reverse=True)
    assert len({one.text for one in three}) == 3

    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    command = ["translate", str(result.folder)]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "in.txt"), "--batch-size", "2"])
    assert done.exit_code == 0, done.output
    assert done.stdout.split("\n") == [*found, ""]
    piped = CliRunner().invoke(app, command, input="\n".join(texts) + "\n")
    assert piped.stdout == done.stdout
    objects = CliRunner().invoke(app, [*command, str(tmp_path / "in.txt"), "--json", "--n-best", "2"])
    first = json.loads(objects.stdout.splitlines()[0])
    assert first["source"] == "eins zwei drei"
    assert first["translations"][0]["text"] == "one two three"
    assert len(first["translations"]) == 2


@pytest.mark.threads2
@pytest.mark.parametrize("family", MODELS)
def test_stopped_and_resumed_ends_like_one_left_alone(recipe, tmp_path, monkeypatch, family):
    overrides = [f"tokenizer.separate={str(family == 'seq2seq').lower()}"]
    straight = train(recipe(family), overrides, out=tmp_path / "straight").folder

    from wordloom.training.hooks import Log

    write = Log.write

    def stop(self, trainer, line):
        write(self, trainer, line)
        if line["step"] == 15:
            trainer.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", stop)
        assert train(recipe(family), overrides, out=tmp_path / "resumed").stopped
    resumed = train(recipe(family), overrides, out=tmp_path / "resumed", resume=True)
    assert lines(straight) == lines(tmp_path / "resumed")
    last = f"checkpoints/step-{resumed.step}"
    if family == "seq2seq":
        assert "vocabularies: 11 tokens of sources, 11 of targets" in (straight / "ledger.json").read_text()
    for name in ("model.safetensors", f"{last}/model.safetensors", f"{last}/trainer/state.safetensors"):
        assert (straight / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.family=gpt2", "model.n_layers=1"], "'gpt2' turns no text into another, .* take seq2seq or"),
        (["model.vocab_size=9"], "model.vocab_size is the tokenizer's; leave it out"),
        (
            ["train.seq_len=9"],
            "train.seq_len is not a setting of train.objective",
        ),
        (["data.separator=line"], "data.separator is not a setting of train.objective 'translation'"),
        (["data.max_source_tokens=99"], "data.max_source_tokens 99 is above model.max_seq_len 32"),
        (["tokenizer.special_tokens=['<unk>','<eos>']"], "the tokenizer has no pad token"),
        (
            ["tokenizer.source_vocab_size=9"],
            "tokenizer.source_vocab_size has no effect without tokenizer.separate",
        ),
        (["tokenizer.source_path=x"], "tokenizer.source_path has no effect without tokenizer.path"),
        (["tokenizer.separate=true", "model.share_embeddings=true"], "needs one vocabulary for both sides"),
        (["data.targets=none"], "holds one side of the pairs; give the other"),
        (["train.objective=causal_lm"], "data.targets is not a setting of train.objective 'causal_lm'"),
    ],
)
def test_mistakes_are_one_clear_line(recipe, tmp_path, overrides, says):
    with pytest.raises(wordloom.WordloomError, match=says) as caught:
        train(recipe(), overrides, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_recipe_says_how_many_batches_make_a_step(recipe, tmp_path):
    path = recipe()
    path.write_text(path.read_text().replace("batch_size = 1\n", ""))
    with pytest.raises(wordloom.WordloomError, match=r"train\.batch_size counts the batches"):
        train(path, out=tmp_path / "run")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [7, 300])
def test_label_smoothing_is_torchs(dtype, rows):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 12, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(90, 12, generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(90, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, 90, (rows,), generator=generator)
    targets[::5] = -100
    ours = linear_cross_entropy(hidden, weight, bias, targets, smoothing=0.1)
    theirs = F.cross_entropy(hidden @ weight.T + bias, targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(ours.to(dtype), theirs, rtol=1e-5, atol=1e-4)
    inputs = [hidden, weight, bias]
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        unseen = linear_cross_entropy(hidden.detach(), weight.detach(), bias.detach(), targets, smoothing=0.1)
    torch.testing.assert_close(unseen, ours.detach())


def test_a_marian_folder_of_two_vocabularies_is_read_by_transformers_and_translates_alike(recipe, tmp_path):
    transformers = pytest.importorskip("transformers")
    run = train(recipe(), ["train.epochs=20", "tokenizer.separate=true"], out=tmp_path / "run").folder
    theirs = transformers.MarianMTModel.from_pretrained(run).eval()
    source = transformers.AutoTokenizer.from_pretrained(run, subfolder="source_tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    translator = wordloom.load(run)
    texts = ["eins zwei drei", "acht acht vier null sieben", "sechs"]
    found = [best[0].text for best in translator.translate(texts)]
    for text, ours in zip(texts, found, strict=True):
        ids = torch.tensor([[*source(text)["input_ids"], source.eos_token_id]])
        made = theirs.generate(ids, num_beams=5, max_new_tokens=40)
        assert tokenizer.decode(made[0], skip_special_tokens=True) == ours
