"""A decoder from a BERT through the whole run: begun, stopped and resumed, read by transformers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.run.test_train import lines
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import CheckpointError
from wordloom.models import BertConfig, TaskConfig, build
from wordloom.progress import TrainingProgress
from wordloom.run import Translator, load_as, train
from wordloom.run.tasks.translation.scores import align, pairs_to_score, translation_scores
from wordloom.text import Tokenizer
from wordloom.training import Trainer
from wordloom.weights import load_config, save_model

GERMAN = ["null", "eins", "zwei", "drei", "vier", "sechs", "sieben", "acht"]
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
{more}
[train]
objective = "translation"
steps = 12
batch_size = 1
batch_tokens = 200
learning_rate = 1e-2
warmup_steps = 2
evaluate_every = 6
save_every = 6
device = "cpu"
precision = "fp32"
"""
TOKENIZER = """
[tokenizer]
kind = "wordpiece"
vocab_size = 90
"""


class Told(TrainingProgress):
    """Keeps what a person is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def say(self, lines: str | list[str]) -> None:
        self.told += [lines] if isinstance(lines, str) else lines


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers in German and in English, and a BERT of 14 places that knows nothing of them."""
    folder, draw = tmp_path_factory.mktemp("bert2bert"), random.Random(5)
    rows = [[draw.randrange(8) for _ in range(draw.randint(1, 7))] for _ in range(300)]
    pairs = [(" ".join(GERMAN[w] for w in row), " ".join(ENGLISH[w] for w in row)) for row in rows]
    (folder / "train.de").write_text("".join(f"{source}\n" for source, _ in pairs[:260]))
    (folder / "train.en").write_text("".join(f"{target}\n" for _, target in pairs[:260]))
    (folder / "val.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs[260:]))
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], kind="wordpiece", vocab_size=90)
    assert tokenizer.eos_id is None
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, dim=32, n_layers=1, n_heads=2, max_seq_len=14, masked_lm_head=True,
        dropout=0.05,
    )  # fmt: skip
    save_model(build(config), folder / "bert", tokenizer=tokenizer)
    (folder / "from.toml").write_text(RECIPE.format(folder=folder, more="max_source_tokens = 12") + TOKENIZER)
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> tuple[Path, list[str]]:
    """A run begun with that BERT, and what was told."""
    told = Told()
    made = train(place / "from.toml", [], out=place / "run", start_from=place / "bert", progress=told)
    return made.folder, told.told


def test_both_sides_begin_with_the_bert_and_it_is_told(run: tuple[Path, list[str]], place: Path) -> None:
    folder, told = run
    config = load_config(folder)
    assert (config.dim, config.n_layers, config.decoder_layers, config.max_seq_len) == (32, 1, 1, 14)
    text = "\n".join(told)
    assert f"start       encoder from {place / 'bert'}: token_embedding, position_embedding" in text
    assert "start       decoder, folded: segment_embedding's row 0 into position_embedding" in text
    assert "start       decoder, fresh: cross_attention, cross_attention_norm" in text
    assert "start       decoder, left out: segment_embedding from row 1 on, pooler, mlm_transform" in text


def test_transformers_writes_as_we_do_by_what_the_folder_says(
    run: tuple[Path, list[str]], place: Path, tmp_path: Path
) -> None:
    """[CLS] begins and [SEP] ends both what is read and what is written; none of it is given here."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    translator = load_as(Translator, run[0])
    tokenizer = translator.tokenizer
    assert (translator.start_id, translator.eos_id) == (tokenizer.cls_id, tokenizer.sep_id)
    texts = ["eins zwei", "vier sechs acht null", "drei"]
    ours = [found[0].text for found in translator.translate(texts)]
    theirs, model = AutoTokenizer.from_pretrained(run[0]), AutoModelForSeq2SeqLM.from_pretrained(run[0])
    rows = [theirs(text, return_tensors="pt") for text in texts]
    assert [row["input_ids"][0].tolist() for row in rows] == translator.source_rows(texts)
    made = [model.generate(row["input_ids"], attention_mask=row["attention_mask"]) for row in rows]
    assert [theirs.decode(ids[0], skip_special_tokens=True) for ids in made] == ours
    assert all(ours)
    model.save_pretrained(tmp_path)
    Tokenizer.from_pretrained(place / "bert").save_pretrained(tmp_path)  # a BERT's, as it usually lies there
    assert [found[0].text for found in load_as(Translator, tmp_path).translate(texts)] == ours
    aligned = align(translator, "eins zwei", "one two")
    assert aligned.weights.shape[-2:] == (len(aligned.target), len(aligned.source))


def test_it_is_translated_from_the_command_line_and_saved_again(
    run: tuple[Path, list[str]], place: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("eins zwei\n\nacht\n")
    done = CliRunner().invoke(
        app, ["translate", str(run[0]), str(tmp_path / "in.txt"), "--max-new-tokens", "5"]
    )
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 3
    translator = load_as(Translator, run[0])
    long = " ".join(GERMAN * 2)  # 16 words and what stands around them, where 14 places are
    assert all(len(row) <= 14 for row in translator._divided(long))
    translator.save_pretrained(tmp_path / "again")
    again = load_as(Translator, tmp_path / "again")
    assert (again.start_id, again.source_start_id) == (translator.start_id, translator.source_start_id)


def test_the_loss_of_its_validation_pairs_is_that_of_the_run(run: tuple[Path, list[str]]) -> None:
    pairs = list(pairs_to_score(run[0], []))
    scores, _ = translation_scores(load_as(Translator, run[0]), pairs, beams=1, max_new_tokens=1)
    last = [row["loss"] for row in lines(run[0]) if row["kind"] == "evaluate"][-1]
    assert scores["loss"].value == pytest.approx(last, rel=1e-5)


def test_it_resumes_to_the_same_bits(
    run: tuple[Path, list[str]], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.train_step

    def stopping(self: Any) -> Any:
        record = step(self)
        if self.step == 7:
            self.stop()
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopping)
        assert train(place / "from.toml", [], out=tmp_path / "run", start_from=place / "bert").stopped
    train(place / "from.toml", [], out=tmp_path / "run", resume=True)
    for name in ("model.safetensors", "config.json", "generation_config.json", "tokenizer_config.json"):
        assert (tmp_path / "run" / name).read_bytes() == (run[0] / name).read_bytes(), name


def test_it_also_begins_with_nothing_and_with_copies(place: Path, tmp_path: Path) -> None:
    more = '[model]\nfamily = "bert_generation"\ndim = 16\nn_layers = 1\nn_heads = 2\nmax_seq_len = 12'
    path = tmp_path / "own.toml"
    path.write_text(RECIPE.format(folder=place, more="") + TOKENIZER + more)
    short = ["train.steps=2", "train.evaluate_every=0", "train.save_every=0"]
    translator = load_as(Translator, train(path, short, out=tmp_path / "fresh").folder)
    assert translator.start_id == translator.source_start_id == translator.tokenizer.cls_id
    assert translator.config.padding_idx == translator.pad_id
    told = Told()
    given = [*short, "train.cross_attention=copied", "model.dim=32"]
    made = train(path, given, out=tmp_path / "copied", start_from=place / "bert", progress=told).folder
    assert any("copied: attention and attention_norm into cross_attention" in line for line in told.told)
    assert load_config(made).max_seq_len == 12
    with pytest.raises(CheckpointError, match="has dim 32, the model's encoder has 16"):
        train(path, short, out=tmp_path / "other", start_from=place / "bert")
    words = [*short, "tokenizer.kind=word", "tokenizer.vocab_size=none"]  # which know no beginning
    translator = load_as(Translator, train(path, words, out=tmp_path / "words").folder)
    assert (translator.start_id, translator.source_start_id) == (translator.pad_id, None)


def test_it_also_begins_with_what_was_tuned(place: Path, tmp_path: Path) -> None:
    body = replace(load_config(place / "bert"), masked_lm_head=False)
    config = TaskConfig(body=body, task="classification", id2label={"0": "no", "1": "yes"})
    save_model(build(config), tmp_path / "tuned", tokenizer=Tokenizer.from_pretrained(place / "bert"))
    told = Told()
    short = ["train.steps=2", "train.evaluate_every=0", "train.save_every=0"]
    given = {"start_from": tmp_path / "tuned", "progress": told}
    translator = load_as(Translator, train(place / "from.toml", short, out=tmp_path / "run", **given).folder)
    assert any("decoder, left out" in line and line.endswith("pooler, classifier") for line in told.told)
    assert translator.start_id == translator.tokenizer.cls_id
