"""What GPT reads for each kind of task (Radford et al. 2018, figure 1), to the very rows of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from wordloom.data import ChoiceRow
from wordloom.data.batches.choices import choice_tokens
from wordloom.data.batches.framed import TASK_TOKENS, Frame, marked_rows
from wordloom.errors import DataError, TokenizerError
from wordloom.text import Tokenizer

TEXTS = ["the cat sat on a mat", "a dog ran", "the dog sat", "it is wet"]
START, DELIMITER, EXTRACT = TASK_TOKENS


def gpt() -> Tokenizer:
    """In the layout of openai-gpt's: lower-cased words that end in </w>, and no mark but <unk>."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(TEXTS * 4, trainer)
    return read(made)


def llama() -> Tokenizer:
    """In SentencePiece's layout: <s> and </s>, spaces as U+2581, bytes for what is unknown."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += sorted(set("".join(TEXTS).replace(" ", "")))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return read(made)


def read(made: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(json.loads(made.to_str()))


def spelled(tokenizer: Tokenizer, frame: Frame, *rows: tuple[str, ...]) -> list[list[str]]:
    made = marked_rows(tokenizer, rows, frame, longest=90)
    cut = zip(made.offsets, made.offsets[1:], strict=False)
    return [[tokenizer.id_to_token(i) for i in made.ids[a:b].tolist()] for a, b in cut]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(i) for i in tokenizer.encode_ids(text)]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("own", [True, False])
def test_every_task_is_read_as_the_paper_draws_it(kind: str, own: bool) -> None:
    """With new tokens; and with those that a pretrained tokenizer has for the ends of texts."""
    plain = {"gpt": gpt, "llama": llama}[kind]()
    bos = [] if plain.bos_id is None else ["<s>"]
    if not own and kind == "gpt":
        with pytest.raises(DataError, match=r"no token that ends a text.*data\.task_tokens = true"):
            Frame.of_causal(plain)
        return
    tokenizer = plain.with_marks(*TASK_TOKENS) if own else plain
    start, delimiter, extract = ([*bos, START], DELIMITER, EXTRACT) if own else (bos, "</s>", "</s>")
    frame = Frame.of_causal(tokenizer)
    premise, hypothesis = (pieces(plain, text) for text in ("the cat sat", "a dog ran"))
    if kind == "gpt":
        assert "".join(premise) == "the</w>cat</w>sat</w>"
    else:
        assert "".join(premise) == "▁the▁cat▁sat"

    assert spelled(tokenizer, frame, ("the cat sat",)) == [[*start, *premise, extract]]  # classification
    entailment = [*start, *premise, delimiter, *hypothesis, extract]
    assert spelled(tokenizer, frame, ("the cat sat", "a dog ran")) == [entailment]
    other = [*start, *hypothesis, delimiter, *premise, extract]
    assert spelled(tokenizer, frame, ("a dog ran", "the cat sat")) == [other]  # similarity's other order

    question = ChoiceRow("the cat sat", "a dog", ("ran", "sat on a mat"), 0, "q", 1)
    made = choice_tokens(tokenizer, [question], frame, longest=90)
    rows = [made.ids[a:b].tolist() for a, b in zip(made.offsets, made.offsets[1:], strict=False)]
    assert [[tokenizer.id_to_token(i) for i in row] for row in rows] == [
        [*start, *premise, delimiter, *pieces(plain, "a dog " + choice), extract]
        for choice in question.choices
    ]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_marks_are_added_behind_all_others(kind: str, tmp_path: Any) -> None:
    """Also as transformers reads the folder; text that spells a mark is ordinary text here."""
    transformers = pytest.importorskip("transformers")
    plain = {"gpt": gpt, "llama": llama}[kind]()
    marked = plain.with_marks(*TASK_TOKENS)
    assert [marked.token_to_id(name) for name in TASK_TOKENS] == [plain.vocab_size + n for n in range(3)]
    assert marked.vocabulary_hash(plain.vocab_size) == plain.vocabulary_hash()
    assert marked.with_marks(*TASK_TOKENS).fingerprint == marked.fingerprint
    assert marked.encode_ids("the cat sat") == plain.encode_ids("the cat sat")
    assert (marked.bos_id, marked.eos_id, marked.kind) == (plain.bos_id, plain.eos_id, plain.kind)
    marked.save_pretrained(tmp_path)
    again, theirs = Tokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.fingerprint == marked.fingerprint
    frame = Frame.of_causal(again)
    for row in (("the cat sat",), ("the cat sat", "a dog ran")):
        assert theirs(*row)["input_ids"] == marked_rows(again, [row], frame, longest=90).ids.tolist()
    again.with_marks(*TASK_TOKENS).save_pretrained(tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        first, second = (json.loads((at / name).read_text()) for at in (tmp_path, tmp_path / "again"))
        assert first == second
    spelling = marked_rows(again, [("a _delimiter_ a",)], frame, longest=90).ids.tolist()
    assert spelling.count(again.token_to_id(DELIMITER)) == 0
    with pytest.raises(TokenizerError, match="already has a token 'the'"):
        Tokenizer.train(["the cat"], kind="word").with_marks("the", "b", "c")
