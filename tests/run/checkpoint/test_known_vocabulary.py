"""A model folder knows the tokenizer that its model learnt with, and is not read with another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.run.translators import write_translator

import wordloom
from wordloom.cli.usage import short_names
from wordloom.data import PairCorpus
from wordloom.errors import CheckpointError, DataError, WordloomError
from wordloom.models import build, config_from
from wordloom.run import average
from wordloom.text import Tokenizer
from wordloom.weights import save_model

ONE, OTHER = ("the cat sat on the mat", "all new words come in")  # as many of each
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def words(text: str, **settings: Any) -> Tokenizer:
    return Tokenizer.train([text], kind="word", special_tokens=["<unk>", "</s>", "<pad>"], **settings)


def folder_of(path: Path, family: str, tokenizer: Tokenizer) -> Path:
    shapes: dict[str, dict[str, Any]] = {
        "llama": {"dim": 8, "n_layers": 1, "n_heads": 2, "max_seq_len": 8},
        "rnn": {"dim": 8, "n_layers": 1},
        "bert": {"dim": 8, "n_layers": 1, "n_heads": 2, "max_seq_len": 8},
        "rnn_classifier": {"dim": 4, "id2label": {"0": "x", "1": "y"}},
    }
    save_model(
        build(config_from(family, vocab_size=tokenizer.vocab_size + 3, **shapes[family])),
        path,
        tokenizer=tokenizer,
    )
    return path


@pytest.mark.parametrize("family", ["llama", "rnn", "bert", "rnn_classifier"])
def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path, family: str) -> None:
    folder = folder_of(tmp_path / "run", family, words(ONE))
    wordloom.load(folder)
    other = words(OTHER)
    assert other.vocab_size == words(ONE).vocab_size
    other.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"trained with a different tokenizer.*put that tokenizer back"):
        wordloom.load(folder)
    words(ONE).save_pretrained(folder)
    longer = words(ONE)
    longer._definition["added_tokens"].append(
        {**longer._definition["added_tokens"][0], "id": longer.vocab_size, "content": "<more>"}
    )
    longer.save_pretrained(folder)  # a token behind those it learnt with, as other tools add them
    assert wordloom.load(folder).tokenizer.vocab_size == longer.vocab_size + 1
    facts = json.loads((folder / "config.json").read_text())
    del facts["vocabulary"]
    (folder / "config.json").write_text(json.dumps(facts))
    other.save_pretrained(folder)
    wordloom.load(folder)  # nothing is known of it


def test_both_tokenizers_of_a_translator_are_known_and_averages_know_them(tmp_path: Path) -> None:
    for step in (1, 2):
        write_translator(tmp_path / f"run/checkpoints/step-{step}", seed=step)
    average([tmp_path / "run"], tmp_path / "mean")
    for key in ("vocabulary", "source_vocabulary"):
        facts = json.loads((tmp_path / "mean/config.json").read_text())
        assert facts[key]["size"] > 0
        facts[key]["sha256"] = "0" * 16
        (tmp_path / key).mkdir()
        for path in (tmp_path / "mean").rglob("*.*"):
            if path.is_file():
                copy = tmp_path / key / path.relative_to(tmp_path / "mean")
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(path.read_bytes())
        (tmp_path / key / "config.json").write_text(json.dumps(facts))
        with pytest.raises(CheckpointError, match=f'remove "{key}" from config.json'):
            wordloom.load(tmp_path / key)
    with pytest.raises(CheckpointError, match="has the name of a checkpoint of the run"):
        average([tmp_path / "run"], tmp_path / "run/checkpoints/step-3")


def test_transformers_ends_texts_as_the_model_learnt_them(tmp_path: Path) -> None:
    tokenizer = words(ONE).with_end()
    assert tokenizer.encode_ids("the cat") == words(ONE).encode_ids("the cat")
    assert tokenizer.fingerprint == words(ONE).fingerprint
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("the cat")["input_ids"] == [*tokenizer.encode_ids("the cat"), tokenizer.eos_id]
    assert Tokenizer.from_pretrained(tmp_path).encode_ids("the cat") == tokenizer.encode_ids("the cat")
    pieces = Tokenizer.train([ONE], kind="wordpiece", vocab_size=40)
    assert pieces.with_end() is pieces  # it has no end, and says what stands around its texts


@given(st.lists(st.sampled_from(["a/x", "b/x", "a/y", "c"]), min_size=1, max_size=4))
def test_folders_are_named_apart(folders: list[str]) -> None:
    if len(set(folders)) < len(folders):
        with pytest.raises(WordloomError, match="given twice"):
            short_names(folders)
        return
    names = short_names(folders)
    assert list(names) == folders
    assert len(set(names.values())) == len(folders)


def test_pairs_of_a_text_with_itself_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(DataError, match="both sides of the pairs are column 'de'"):
        PairCorpus(sources="x.tsv", source_column="de", target_column="de")
    with pytest.raises(DataError, match="given for both sides"):
        list(PairCorpus(sources=tmp_path / "a.txt", targets=tmp_path / "a.txt").pairs())  # type: ignore[arg-type]


def test_columns_within_columns_as_translation_sets_have_them(tmp_path: Path) -> None:
    rows = [{"translation": {"de": "eins", "en": "one"}}, {"translation": {"de": "zwei", "en": "two"}}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {"sources": str(tmp_path / "pairs.jsonl"), "validation_fraction": 0.0}
    found = PairCorpus(**settings, source_column="translation.de", target_column="translation.en").pairs()
    assert [pair[:2] for pair in found] == [("eins", "one"), ("zwei", "two")]
    with pytest.raises(DataError, match=r"translation\.fr"):
        list(PairCorpus(**settings, source_column="translation.de", target_column="translation.fr").pairs())
