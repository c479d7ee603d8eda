"""Training on prepared tokens: the weights are those of training on the text, and mistakes are one line."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.data import Corpus, prepare
from wordloom.data.shards.merge import merge_shares
from wordloom.data.shards.tasks import prepare_share
from wordloom.data.text.shares import ShareNumber
from wordloom.errors import DataError, RecipeError, WordloomError
from wordloom.run import train
from wordloom.run.speculation import drafter_named
from wordloom.text import Tokenizer
from wordloom.training.hooks import Log

TASKS = 2 + secrets.randbelow(9)


@pytest.fixture
def tokenizer(tmp_path: Path, corpus: Path) -> Tokenizer:
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    made = Tokenizer.train(texts, kind="bpe", vocab_size=300)
    made.save_pretrained(tmp_path / "tokenizer")
    return made


def prepare_tasks(corpus: Path, tokenizer: Tokenizer, out: Path, parts=("train", "validation"), **settings):
    split = Corpus(sources=corpus, split="hash", validation_fraction=0.2)
    for number in range(1, TASKS + 1):
        prepare_share(split, tokenizer, ShareNumber(number, TASKS), out=out, parts=parts, **settings)
    merge_shares(out)
    return out


def on_tokens(recipe: Path, folder: str | Path) -> Path:
    """Return a recipe that reads the tokens in ``folder`` instead of text."""
    path = recipe.with_name("tokens.toml")
    text = re.sub(r"split = .*\nvalidation_fraction = .*\n", "", with_tokenizer(recipe.read_text(), ""))
    path.write_text(re.sub(r'train = ".*"', f'train = "{folder}"', text))
    return path


def with_tokenizer(recipe: str, table: str) -> str:
    """Return the text of a recipe with another table for the tokenizer."""
    return re.sub(r"\[tokenizer\]\n(?:[^\[].*\n)*", table, recipe)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("family", "masked"), [("llama", False), ("gpt2", True), ("rnn", False)])
def test_the_weights_are_those_of_training_on_the_text(recipe, corpus, tokenizer, tmp_path, family, masked):
    print("tasks", TASKS)
    own = recipe(family, document_mask=masked)
    text, settings = own.read_text(), []
    if family == "rnn":
        text = text.replace("n_heads = 2\n", "")
        settings = ["train.objective=truncated_bptt", "train.micro_batch_size=6"]
    own.write_text(with_tokenizer(text, f'[tokenizer]\npath = "{tmp_path / "tokenizer"}"\n'))
    train(own, settings, out=tmp_path / "text")
    folder = prepare_tasks(corpus, tokenizer, tmp_path / "prepared")
    train(on_tokens(own, folder), settings, out=tmp_path / "tokens")
    assert equal(tmp_path / "text", tmp_path / "tokens")
    ledgers = [json.loads((tmp_path / name / "ledger.json").read_text()) for name in ("text", "tokens")]
    assert ledgers[0] == ledgers[1]


def test_a_stopped_run_resumes_exactly(recipe, corpus, tokenizer, tmp_path, monkeypatch):
    shared = on_tokens(recipe("llama"), prepare_tasks(corpus, tokenizer, tmp_path / "prepared"))
    train(shared, out=tmp_path / "whole")
    write = Log.write

    def stop_at_nine(self, trainer, line):
        write(self, trainer, line)
        if line["step"] == 9:
            trainer.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", stop_at_nine)
        assert train(shared, out=tmp_path / "stopped").stopped
    train(tmp_path / "stopped", out=tmp_path / "stopped", resume=True)
    assert equal(tmp_path / "whole", tmp_path / "stopped")


def test_a_folder_in_one_piece_is_taken_too(recipe, corpus, tokenizer, tmp_path):
    whole = prepare(Corpus(sources=corpus, split="hash", validation_fraction=0), tokenizer, part="train")
    path = on_tokens(recipe("llama"), whole.folder)
    short = [
        "train.steps=2",
        "train.evaluate_every=0",
        "data.validation_fraction=0",
        f"tokenizer.path={tmp_path / 'tokenizer'}",
    ]
    train(path, short, out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"holds no tokenizer; name the one of its tokens: tokenizer.path"):
        train(path, short[:3], out=tmp_path / "other")
    with pytest.raises(
        DataError, match=r"no validation part \(it has: train\); name data.validation, or set"
    ):
        train(path, [short[0], short[3]], out=tmp_path / "third")


def test_an_encoder_takes_tokens_that_end_with_its_separator(recipe, corpus, tokenizer, tmp_path):
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    bert = Tokenizer.train(texts, kind="wordpiece", vocab_size=300)
    settings = ["train.objective=masked_lm", "model.family=bert", "train.steps=2", "train.sample_every=none"]
    path = on_tokens(recipe("bert"), prepare_tasks(corpus, bert, tmp_path / "ends", end="sep"))
    path.write_text(re.sub(r"sample.*\n|document_mask.*\n", "", path.read_text()))
    train(path, settings[:3], out=tmp_path / "run")
    other = prepare_tasks(corpus, bert, tmp_path / "no ends")
    with pytest.raises(DataError, match=r"another end of a document than the objective reads; .* --end sep"):
        train(path, [*settings[:3], f"data.train={other}"], out=tmp_path / "other")
    pairs = ["train.objective=masked_lm+next_sentence", *settings[1:3]]
    with pytest.raises(RecipeError, match="next sentences are found in text"):
        train(path, pairs, out=tmp_path / "third")


def test_mistakes_are_one_line(recipe, corpus, tokenizer, tmp_path):
    folder = prepare_tasks(corpus, tokenizer, tmp_path / "prepared")
    path = on_tokens(recipe("llama"), folder)
    Tokenizer.train([], kind="byte").save_pretrained(tmp_path / "bytes")
    cases = {
        f"tokenizer.path={tmp_path / 'bytes'}": "was prepared with another tokenizer than this byte one",
        "tokenizer.kind=bpe": "leave \\[tokenizer\\] out, or set tokenizer.path=",
        "data.separator=line": "was prepared with its own settings: leave out data.separator",
        "data.split=hash": "leave out data.split",
        "data.validation_fraction=0.5": "leave out data.validation_fraction",
        f"data.validation={corpus}": "data.validation names text, and data.train prepared tokens",
        f'data.validation=["{folder}", "{folder}"]': "data.validation names .* beside others; name it alone",
        f'data.train=["{folder}", "{corpus}"]': "beside others; name it alone",
    }
    for override, message in cases.items():
        with pytest.raises(WordloomError, match=message) as caught:
            train(path, [override], out=tmp_path / "run")
        assert "\n" not in str(caught.value)
    with pytest.raises(RecipeError, match=r"is prepared, and data.train is text; name text for both"):
        train(recipe("llama"), [f"data.validation={folder}"], out=tmp_path / "run")
    (folder / "shards.json").unlink()
    with pytest.raises(DataError, match=r"is not merged yet; .* run: wordloom data merge"):
        train(path, out=tmp_path / "run")


def test_what_needs_the_text_says_so(recipe, corpus, tokenizer, tmp_path):
    path = on_tokens(recipe("llama"), prepare_tasks(corpus, tokenizer, tmp_path / "prepared"))
    train(path, ["train.steps=2"], out=tmp_path / "run")
    said = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert isinstance(said.exception, DataError)
    assert "holds prepared tokens, and this needs the text; name a file of text" in str(said.exception)
    drafter = drafter_named("corpus", tmp_path / "run", tokenizer)
    assert drafter is not None


def test_tokens_of_datatrove_give_the_weights_of_the_text(recipe, corpus, tokenizer, tmp_path):
    """The split by hash writes two folders, one for each part."""
    pytest.importorskip("datatrove")
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    own = recipe("llama", document_mask=True)
    own.write_text(with_tokenizer(own.read_text(), f'[tokenizer]\npath = "{tmp_path / "tokenizer"}"\n'))
    train(own, out=tmp_path / "text")
    split = Corpus(sources=corpus, split="hash", validation_fraction=0.2)
    for part in ("train", "validation"):
        documents = list(split.documents(part))
        for n, some in enumerate((documents[:5], documents[5:])):
            file = TokenizedFile(str(tmp_path / part), f"{n}.ds", save_final_metadata=True)
            for document in some:
                file.write([*tokenizer.encode_ids(document.text), tokenizer.eos_id], None)
            file.close()
    path = on_tokens(own, tmp_path / "train")
    where = [f"data.validation={tmp_path / 'validation'}", f"tokenizer.path={tmp_path / 'tokenizer'}"]
    train(path, where, out=tmp_path / "tokens")
    assert equal(tmp_path / "text", tmp_path / "tokens")
    lines = (tmp_path / "tokens" / "metrics.jsonl").read_text()
    assert "bits_per_byte" not in lines  # the bytes of the text are unknown
    with pytest.raises(RecipeError, match=r"holds no tokenizer; name the one of its tokens: tokenizer\.path"):
        train(path, where[:1], out=tmp_path / "other")


def test_tokens_behind_a_url(recipe, corpus, tokenizer, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    folder = prepare_tasks(corpus, tokenizer, tmp_path / "prepared")
    train(on_tokens(recipe("llama"), folder), out=tmp_path / "local")
    url = f"memory://{secrets.token_hex(8)}"
    fsspec.filesystem("memory").put(str(folder), url, recursive=True)
    train(on_tokens(recipe("llama"), url), out=tmp_path / "remote")
    assert equal(tmp_path / "local", tmp_path / "remote")
