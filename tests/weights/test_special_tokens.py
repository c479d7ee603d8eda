"""Texts and pairs through transformers' tokenizers are the rows that our models read, with our answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from wordloom.data.batches.framed import TASK_TOKENS, Frame, marked_rows
from wordloom.models import BertConfig, GPT2Config, LlamaConfig, RobertaConfig, build
from wordloom.models.task_model import SUMMARIES, TASKS, TaskConfig
from wordloom.text import Tokenizer
from wordloom.weights import save_model

SHAPE: dict[str, Any] = {"dim": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32, "dropout": 0.0}
TEXT = "the world says hello, and hello there the world says a word to a big round world again "
ROWS = [("hello there", "the world"), ("a word", "a big round world says hello")]


def made(kind: str) -> tuple[Any, Tokenizer]:
    """A config of the kind and a tokenizer for it."""
    match kind:
        case "bert":
            tokenizer = Tokenizer.train([TEXT * 9], kind="wordpiece", vocab_size=120, lower=True)
            return BertConfig(vocab_size=tokenizer.vocab_size, **SHAPE), tokenizer
        case "bert by bpe":
            marks = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
            tokenizer = Tokenizer.train([TEXT * 9], kind="bpe", vocab_size=300, special_tokens=marks)
            return BertConfig(vocab_size=tokenizer.vocab_size, **SHAPE), tokenizer
        case "roberta":
            marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
            tokenizer = Tokenizer.train([TEXT * 9], kind="bpe", vocab_size=300, special_tokens=marks)
            return RobertaConfig(vocab_size=tokenizer.vocab_size, **SHAPE), tokenizer
        case "gpt2":
            tokenizer = Tokenizer.train(
                [TEXT * 9], kind="bpe", vocab_size=300, special_tokens=["<|endoftext|>", "<|pad|>"]
            )
            return GPT2Config(vocab_size=tokenizer.vocab_size, **SHAPE), tokenizer
        case _:
            tokenizer = Tokenizer.train(
                [TEXT * 9], kind="bpe", vocab_size=300, special_tokens=["<s>", "</s>", "<pad>"]
            )
            shape = {name: value for name, value in SHAPE.items() if name != "dropout"}
            return LlamaConfig(vocab_size=tokenizer.vocab_size, **shape), tokenizer


def frame_of(config: Any, tokenizer: Tokenizer) -> Frame:
    if isinstance(config, BertConfig):
        return Frame.of_encoder(tokenizer, doubled=isinstance(config, RobertaConfig))
    return Frame.of_causal(tokenizer)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["bert", "bert by bpe", "roberta", "gpt2", "llama"])
def test_their_tokenizer_and_model_give_our_rows_and_our_answers(
    kind: str, pairs: bool, tmp_path: Path
) -> None:
    body, tokenizer = made(kind)
    config = TaskConfig(body=body, id2label={"0": "no", "1": "yes"})
    model = build(config, generator=torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    save_model(model, tmp_path, tokenizer=tokenizer)
    rows = ROWS if pairs else [row[:1] for row in ROWS]
    read = marked_rows(tokenizer, rows, frame_of(body, tokenizer), longest=32)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    told = theirs(*zip(*rows, strict=True), padding=True, return_tensors="pt")
    their_model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        answers = their_model(**told).logits
    for number in range(len(rows)):
        ids = told["input_ids"][number][told["attention_mask"][number] > 0]
        ours = torch.as_tensor(read.ids[read.offsets[number] : read.offsets[number + 1]])
        assert ids.tolist() == ours.tolist()
        segments = None
        if isinstance(body, BertConfig) and not isinstance(body, RobertaConfig):
            segments = (torch.arange(len(ids)) >= int(read.seconds[number])).long()
            assert told["token_type_ids"][number][: len(ids)].tolist() == segments.tolist()
            segments = segments[None]
        with torch.no_grad():
            expected = model(ours[None].long(), segments, torch.ones(1, len(ids), dtype=torch.bool))[0]
        torch.testing.assert_close(answers[number], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("processor", ["template", "BertProcessing", "Sequence"])
@pytest.mark.parametrize("kind", ["bert", "bert by bpe", "BertTokenizer"])
def test_a_model_of_one_segment_is_saved_with_a_tokenizer_that_gives_no_other(
    kind: str, processor: str, tmp_path: Path
) -> None:
    """The tokenizer comes from a folder whose model tells two texts apart."""
    two, tokenizer = made("bert" if kind == "BertTokenizer" else kind)
    save_model(build(two), tmp_path / "two", tokenizer=tokenizer)
    definition = json.loads((tmp_path / "two/tokenizer.json").read_text())
    if processor != "template":
        marks = {"sep": ["[SEP]", tokenizer.sep_id], "cls": ["[CLS]", tokenizer.cls_id]}
        definition["post_processor"] = {"type": "BertProcessing", **marks}
    if processor == "Sequence":
        definition["post_processor"] = {"type": "Sequence", "processors": [definition["post_processor"]]}
    if kind == "BertTokenizer":
        settings = json.loads((tmp_path / "two/tokenizer_config.json").read_text())
        settings["tokenizer_class"] = kind
        (tmp_path / "two/tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "two/tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer.from_pretrained(tmp_path / "two")
    save_model(build(replace(two, type_vocab_size=1)), tmp_path / "one", tokenizer=tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")
    told = theirs(*zip(*ROWS, strict=True), padding=True, return_tensors="pt")
    assert told["input_ids"].tolist() == transformers.AutoTokenizer.from_pretrained(tmp_path / "two")(
        *zip(*ROWS, strict=True), padding=True
    )["input_ids"]  # fmt: skip
    with torch.no_grad():
        transformers.AutoModel.from_pretrained(tmp_path / "one").eval()(**told)
    again = Tokenizer.from_pretrained(tmp_path / "one")
    assert (again.fingerprint, again.encode_ids(TEXT)) == (tokenizer.fingerprint, tokenizer.encode_ids(TEXT))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_mask_takes_the_space_before_it_where_pieces_have_theirs(kind: str, tmp_path: Path) -> None:
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer.train([TEXT * 9], kind=kind, vocab_size=400, special_tokens=marks)
    ids = tokenizer.encode_ids("hello <mask> there", specials="interpret")
    whole = [*tokenizer.encode_ids("hello"), tokenizer.mask_id, *tokenizer.encode_ids(" there")]
    assert ids == whole
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("hello <mask> there", add_special_tokens=False)["input_ids"] == whole


def headed(body: Any, task: str) -> Any:
    labels = {"0": "no", "1": "yes"} if task in ("classification", "token_classification") else {}
    return build(TaskConfig(body=body, task=task, id2label=labels))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["gpt2", "gpt2 with marks", "llama with bos"])
def test_a_tokenizer_that_goes_on_is_what_it_was_before_a_head(kind: str, task: str, tmp_path: Path) -> None:
    """Else a language model begun with a classifier's folder would end every prompt in other tools."""
    body, tokenizer = made(kind.split()[0])
    if kind == "llama with bos":
        tokenizer = edited(tokenizer, tmp_path, tokenizer_class="LlamaTokenizerFast", add_bos_token=True)
    tokenizer.save_pretrained(tmp_path / "before")
    assert tokenizer.adds_bos == (kind == "llama with bos")
    learnt = tokenizer.with_marks(*TASK_TOKENS) if kind == "gpt2 with marks" else tokenizer
    body = replace(body, vocab_size=learnt.vocab_size)
    save_model(headed(body, task), tmp_path / "head", tokenizer=learnt)
    again = Tokenizer.from_pretrained(tmp_path / "head")
    assert again.adds_bos == tokenizer.adds_bos
    save_model(build(body), tmp_path / "model", tokenizer=again)
    model, before = (transformers.AutoTokenizer.from_pretrained(tmp_path / at) for at in ("model", "before"))
    assert model("hello there")["input_ids"] == before("hello there")["input_ids"]
    save_model(headed(body, task), tmp_path / "next", tokenizer=again)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        first, second = (json.loads((tmp_path / at / name).read_text()) for at in ("head", "next"))
        assert first == second
    frame = Frame.of_causal(learnt)
    told = transformers.AutoTokenizer.from_pretrained(tmp_path / "next")(*ROWS[0])["input_ids"]
    assert told == marked_rows(learnt, ROWS[:1], frame, longest=32).ids.tolist()


def edited(tokenizer: Tokenizer, folder: Path, **settings: Any) -> Tokenizer:
    """``tokenizer`` read from a tokenizer_config.json with other ``settings``."""
    tokenizer.save_pretrained(folder / "edited")
    path = folder / "edited/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return Tokenizer.from_pretrained(folder / "edited")


def test_what_others_change_in_a_heads_tokenizer_is_read(tmp_path: Path) -> None:
    """It was lost with the frame: what the file said before came back whole."""
    body, tokenizer = made("gpt2")
    tokenizer = edited(tokenizer, tmp_path, pad_token=None, add_bos_token=False)
    assert tokenizer.pad_id is None
    save_model(headed(body, "classification"), tmp_path / "head", tokenizer=tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "head")
    theirs.add_special_tokens({"pad_token": "[PAD]"})
    theirs.save_pretrained(tmp_path / "theirs")
    again = Tokenizer.from_pretrained(tmp_path / "theirs")
    assert again.pad_id == theirs.pad_token_id == tokenizer.vocab_size
    again.save_pretrained(tmp_path / "plain")
    plain = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
    assert plain("hello there")["input_ids"] == tokenizer.encode_ids("hello there")
    # and a frame that somebody else has made stays
    path = tmp_path / "theirs/tokenizer.json"
    definition = json.loads(path.read_text())
    definition["post_processor"]["single"].reverse()
    path.write_text(json.dumps(definition))
    changed = Tokenizer.from_pretrained(tmp_path / "theirs")
    changed.save_pretrained(tmp_path / "changed")
    assert json.loads((tmp_path / "changed/tokenizer.json").read_text()) == definition
    end = [tokenizer.eos_id]
    told = transformers.AutoTokenizer.from_pretrained(tmp_path / "changed")("hello")["input_ids"]
    assert told == [*end, *tokenizer.encode_ids("hello")]


@pytest.mark.parametrize("task", SUMMARIES)
@pytest.mark.parametrize("marks", [False, True])
def test_a_head_on_a_model_that_pads_with_end_token(marks: bool, task: str, tmp_path: Path) -> None:
    """transformers looks for the last token that is no padding: if the end is, for the one before it."""
    learnt = Tokenizer.train([TEXT * 9], kind="bpe", vocab_size=300, special_tokens=["<|endoftext|>"])
    tokenizer = edited(learnt, tmp_path, pad_token="<|endoftext|>")
    assert tokenizer.pad_id == tokenizer.eos_id
    tokenizer = tokenizer.with_marks(*TASK_TOKENS) if marks else tokenizer
    body = GPT2Config(vocab_size=tokenizer.vocab_size, **SHAPE)
    model = headed(body, task).eval()
    save_model(model, tmp_path / "model", tokenizer=tokenizer)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([[9, 12, 15, Frame.of_causal(tokenizer).end[0]]])
    with torch.no_grad():
        rows = ids[:, None] if task == "multiple_choice" else ids  # [B, choices, T]
        expected = model(rows, None, torch.ones(rows.shape, dtype=torch.bool))
        torch.testing.assert_close(theirs(ids).logits[0], expected.flatten(), rtol=1e-4, atol=1e-5)
        if not marks:
            assert theirs.config.pad_token_id is None
            with pytest.raises(ValueError, match="no padding token"):
                theirs(ids.repeat(2, 1))
