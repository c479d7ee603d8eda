"""Model folders, loaded and saved through the library: whatever a folder says reaches the next one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.translators import write_translator
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data.rows.choices import ChoiceRow
from wordloom.errors import CheckpointError
from wordloom.models import build, config_from
from wordloom.models.task_model import SUMMARIES, TASKS, TaskConfig
from wordloom.run import LanguageModel, TextEncoder, Translator, average
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.token_classification import TokenClassifier
from wordloom.text import Tokenizer
from wordloom.weights import load_model, save_model

SHAPE: dict[str, Any] = {"vocab_size": 40, "max_seq_len": 24, "dim": 12, "n_layers": 2, "n_heads": 3}


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; ... removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_average_names_the_option_that_replaces_a_checkpoint(tmp_path: Path) -> None:
    for seed in range(3):
        model = build(config_from("gpt2", **SHAPE), generator=torch.Generator().manual_seed(seed))
        save_model(model, tmp_path / str(seed))
    sources = [tmp_path / "0", tmp_path / "1"]
    given = ["average", *map(str, sources), "--out", str(tmp_path / "2")]
    refused = CliRunner().invoke(app, given)
    assert isinstance(refused.exception, CheckpointError)
    assert "--force" in str(refused.exception)
    with pytest.raises(CheckpointError, match=r"overwrite=True"):
        average(sources, tmp_path / "2")
    done = CliRunner().invoke(app, [*given, "--force"])
    assert done.exit_code == 0, done.output
    mean = load_model(tmp_path / "2").state_dict()
    for name, tensor in mean.items():
        a, b = (load_model(folder).state_dict()[name] for folder in sources)
        torch.testing.assert_close(tensor, (a + b) / 2)


# -- folders without a tokenizer -------------------------------------------------------------------------

LABELS = {"0": "no", "1": "yes"}
PAIR = {"share_embeddings": False, "source_vocab_size": 30}
BODIES = {
    **{name: (name, SHAPE) for name in ("gpt", "gpt2", "llama")},
    "rnn": ("rnn", {"vocab_size": 40, "dim": 8, "hidden_dim": 8, "n_layers": 1}),
    "bert": ("bert", SHAPE),
    "masked bert": ("bert", {**SHAPE, "pooler": False, "masked_lm_head": True}),
    "next-sentence bert": ("bert", {**SHAPE, "next_sentence_head": True}),
    "pre-trained bert": ("bert", {**SHAPE, "masked_lm_head": True, "next_sentence_head": True}),
    "roberta": ("roberta", SHAPE),
    "masked roberta": ("roberta", {**SHAPE, "pooler": False, "masked_lm_head": True}),
    "transformer": ("transformer", SHAPE),
    "transformer of two vocabularies": ("transformer", {**SHAPE, **PAIR}),
    "seq2seq": ("seq2seq", {"vocab_size": 40, "dim": 8, "hidden_dim": 8, "cell": "gru"}),
    "bert_generation": ("bert_generation", SHAPE),
    "rnn_classifier": ("rnn_classifier", {"vocab_size": 40, "dim": 8, "hidden_dim": 8, "id2label": LABELS}),
    "bag_of_words": ("bag_of_words", {"vocab_size": 40, "id2label": LABELS}),
}
HEADED = ("gpt", "gpt2", "llama", "bert", "roberta")


def config_of(kind: str) -> Any:
    """The config of a name in BODIES, or of a task and a body such as ``regression on gpt2``."""
    task, _, body = kind.rpartition(" on ")
    if not task:
        return config_from(BODIES[kind][0], **BODIES[kind][1])
    pooler = {"pooler": task in SUMMARIES} if body in ("bert", "roberta") else {}
    labels = LABELS if task in ("classification", "token_classification") else {}
    return TaskConfig(body=config_from(body, **SHAPE, **pooler), task=task, id2label=labels)


def text_calls(model: Any) -> list[Any]:
    """What reads text of ``model``."""
    if isinstance(model, LanguageModel):
        return [lambda: model.generate("a"), lambda: model.score("a", ["b"]), lambda: list(model.stream("a"))]
    if isinstance(model, TextEncoder):
        calls = [lambda: model.embed(["a"]), lambda: model.embed_tokens(["a"])]
        masked = [lambda: model.fill("a"), lambda: model.pseudo_perplexity(["a"])]
        return calls + (masked if model.config.masked_lm_head else [])
    if isinstance(model, Translator):
        return [lambda: list(model.translate(["a"])), lambda: model.source_rows(["a"])]
    if isinstance(model, MultipleChoice):
        return [lambda: model.predict([ChoiceRow("a", "", ("b", "c"), None, "file", 1)])]
    if isinstance(model, QuestionAnswerer):
        return [lambda: model.ask("a", "b")]
    if isinstance(model, TokenClassifier):
        return [lambda: model.predict(["a"])]
    return [lambda: model.predict(["a"])]


@pytest.mark.parametrize("kind", [*BODIES, *(f"{task} on {body}" for body in HEADED for task in TASKS)])
def test_a_folder_without_a_tokenizer_loads_and_says_so_when_text_is_read(kind: str, tmp_path: Path) -> None:
    save_model(build(config_of(kind)), tmp_path / "a")
    model = wordloom.load(tmp_path / "a")
    assert model.tokenizer is None
    assert model.config == config_of(kind)
    for call in text_calls(model):
        with pytest.raises(
            CheckpointError, match=r"a has no (tokenizer|vocabulary).*; .*put .* there"
        ) as caught:
            call()
        assert "\n" not in str(caught.value)
    model.save_pretrained(tmp_path / "b")
    again = wordloom.load(tmp_path / "b")
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


@pytest.mark.parametrize("kind", ["transformer", "seq2seq", "bert_generation"])
def test_a_translator_without_a_tokenizer_reads_and_writes_token_ids(kind: str, tmp_path: Path) -> None:
    save_model(build(config_of(kind)), tmp_path / "a")
    with pytest.raises(CheckpointError, match="eos_token_id and pad_token_id into config"):
        wordloom.load(tmp_path / "a").search([[5, 6, 1]], beams=2)
    edit(tmp_path / "a/config.json", eos_token_id=1, pad_token_id=0)
    translator = wordloom.load(tmp_path / "a")
    found = translator.search([[5, 6, 1], [7, 1]], beams=2, max_new_tokens=4)
    translator.save_pretrained(tmp_path / "b")
    assert wordloom.load(tmp_path / "b").search([[5, 6, 1], [7, 1]], beams=2, max_new_tokens=4) == found


# -- generation settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_without_a_generation_config_the_end_tokens_are_those_of_config_json(
    family: str, several: bool, tmp_path: Path
) -> None:
    save_model(build(config_from(family, **SHAPE), generator=torch.Generator().manual_seed(0)), tmp_path)
    (tmp_path / "generation_config.json").unlink()
    free = wordloom.load(tmp_path).generate([1, 2, 3], temperature=0.0, max_new_tokens=8)
    end = free[3]
    other = next(token for token in range(40) if token not in free)
    edit(tmp_path / "config.json", eos_token_id=[other, end] if several else end)
    lm = wordloom.load(tmp_path)
    assert lm.generate([1, 2, 3], temperature=0.0, max_new_tokens=8) == free[: free.index(end) + 1]
    lm.save_pretrained(tmp_path / "again")
    assert wordloom.load(tmp_path / "again").generate([1, 2, 3], temperature=0.0, max_new_tokens=8)[-1] == end


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_saving_a_loaded_model_keeps_its_generation_config(with_tokenizer: bool, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the cat sat on a mat"], kind="char") if with_tokenizer else None
    save_model(build(config_from("llama", **SHAPE)), tmp_path / "a", tokenizer=tokenizer)
    kept = {"eos_token_id": [3, 7], "temperature": 0.6, "top_k": 5, "top_p": 0.9, "do_sample": True,
            "suppress_tokens": [4], "max_length": 20, "stop_strings": ["."]}  # fmt: skip
    edit(tmp_path / "a/generation_config.json", **kept)
    before = json.loads((tmp_path / "a/generation_config.json").read_text())
    wordloom.load(tmp_path / "a").save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == before
    assert json.loads((tmp_path / "b/config.json").read_text())["eos_token_id"] == [3, 7]
    wordloom.load(tmp_path / "b").save_pretrained(tmp_path / "b", overwrite=True)
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == before


def test_settings_of_generation_that_are_not_supported_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(build(config_from("gpt2", **SHAPE)), tmp_path)
    edit(tmp_path / "generation_config.json", suppress_tokens=[4], bad_words_ids=[[5]], temperature=0.5)
    with caplog.at_level(logging.WARNING):
        lm = wordloom.load(tmp_path)
        lm.generate([1, 2], max_new_tokens=2)
        lm.generate([1, 2], max_new_tokens=2)
        list(lm.stream([1, 2], max_new_tokens=2))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert str(tmp_path) in said[0]
    assert "suppress_tokens, bad_words_ids" in said[0]


@pytest.mark.parametrize("forced", [True, False])
def test_saving_a_loaded_translator_keeps_its_generation_config(forced: bool, tmp_path: Path) -> None:
    write_translator(tmp_path / "a")
    changes: dict[str, Any] = {"num_beams": 3, "bad_words_ids": [[0]], "max_length": 9, "length_penalty": 0.5}
    edit(
        tmp_path / "a/generation_config.json", **changes, **({} if forced else {"forced_eos_token_id": None})
    )
    before = json.loads((tmp_path / "a/generation_config.json").read_text())
    translator = wordloom.load(tmp_path / "a")
    translator.save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == before
    assert wordloom.load(tmp_path / "b").forced_eos_id == translator.forced_eos_id
