"""Multiple choice by likelihood: against log-probabilities by hand, summed and per character."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.evaluate.conftest import sharpened

from wordloom.data import ChoiceRow
from wordloom.data.rows.minimal_pairs import MinimalPair
from wordloom.errors import EvaluationError, TokenizerError
from wordloom.evaluate import acceptability, choices, lambada, perplexity
from wordloom.evaluate.continuations import ContinuationReader
from wordloom.evaluate.lambada import Passage
from wordloom.evaluate.masked import pseudo_perplexity
from wordloom.evaluate.positions import bits_by_position
from wordloom.models import BertConfig, CBOWConfig, RNNConfig, context_limit
from wordloom.run.views.ablation import ablation
from wordloom.text import Tokenizer

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "sits",
    "ran",
    "on",
    "mat",
    "and",
    "nobody",
    "who",
    "likes",
    "there",
    "down",
    "why",
    "not",
]


def rows_of(rng: random.Random, n: int) -> list[ChoiceRow]:
    """Questions in every form: with a beginning, with a common continuation, and with "Question:"."""

    def text(longest: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))

    rows = []
    for i in range(n):
        listed = tuple(dict.fromkeys(text(3) for _ in range(rng.randint(2, 5))))  # equal ones may tie
        if len(listed) < 2:
            listed = (*listed, f"{listed[0]} too")
        answer, form = rng.randrange(len(listed)), rng.randrange(5)
        context = ["", "Question: ", "Question: ", "", ""][form] + text(2) + (" Answer:" * (form == 2))
        if form == 4:
            rows.append(ChoiceRow("", "", listed, answer, "rows.jsonl", i, text(2)))
        else:
            rows.append(ChoiceRow(context, text(1) * (form == 3), listed, answer, "rows.jsonl", i))
    return rows


def text_of(row: ChoiceRow, number: int) -> tuple[str, str]:
    """The two parts that are joined by a space."""
    if row.continuation:
        return row.choices[number], row.continuation
    if row.beginning:  # as in the harness, its characters are not those of a choice
        return f"{row.context} {row.beginning}".strip(), row.choices[number]
    asks = row.context.startswith("Question:") and not row.context.endswith("Answer:")
    return row.context + "\nAnswer:" * asks, row.choices[number]


@torch.no_grad()
def nats(model: Any, before: list[int], after: list[int]) -> float:
    """A text that exceeds the window loses its beginning."""
    ids, total = [*before, *after], 0.0
    begin = max(0, len(ids) - 1 - (context_limit(model.config) or len(ids)))
    for i in range(len(before), len(ids)):
        row = model(torch.tensor([ids[begin:i]]))[0, -1].double().log_softmax(-1)
        total -= float(row[ids[i]])
    return total


def test_answers_by_hand(llama, gpt2, byte_tokenizer, rng: random.Random) -> None:
    """Bytes have a boundary everywhere, so that the continuation is its space and its bytes."""
    rows, t = rows_of(rng, 25), byte_tokenizer
    cell = rng.choice(["rnn_tanh", "lstm", "gru"])
    rnn = sharpened(RNNConfig(vocab_size=t.vocab_size, dim=9, hidden_dim=11, n_layers=1, cell=cell))
    bag = sharpened(CBOWConfig(vocab_size=t.vocab_size, dim=9, window=5))
    for model in (llama, gpt2, rnn, bag):
        seen: list[bool] = []
        scores = choices(model, t, rows, batch_size=rng.choice([None, 1, 7]), progress=seen.append)
        by_sum, per_character = [], []
        for row in rows:
            texts = [text_of(row, number) for number in range(len(row.choices))]
            found = [nats(model, t.encode_ids(a), t.encode_ids(f" {b}")) for a, b in texts]
            per = [each / len(b) for each, (_, b) in zip(found, texts, strict=True)]
            by_sum.append(found.index(min(found)) == row.answer)
            per_character.append(per.index(min(per)) == row.answer)
        assert seen == by_sum
        assert scores["accuracy"].value == sum(by_sum) / 25
        assert scores["accuracy_per_character"].value == sum(per_character) / 25
        assert scores.details["chance"] == pytest.approx(sum(1 / len(row.choices) for row in rows) / 25)
        assert scores.notes[0].startswith("a guess is right in ")


def test_a_long_question_loses_its_beginning_and_is_counted(llama, byte_tokenizer) -> None:
    rows = [ChoiceRow("the dog " * 9, "", ("sat", "ran"), 0, "rows", 1)]
    scores = choices(llama, byte_tokenizer, rows)
    assert scores.notes[1] == "2 texts are longer than the window and lost their beginning"
    assert scores.counts["cut"] == 2


def test_refusals(llama, byte_tokenizer, char_model, char_tokenizer) -> None:
    with pytest.raises(EvaluationError, match="no question given; data sets of questions are arc-easy/eval"):
        choices(llama, byte_tokenizer, [])
    row = ChoiceRow("the", "", ("cat", "dog"), None, "rows", 4)
    with pytest.raises(EvaluationError, match="rows:4: has no answer, which scoring needs"):
        choices(llama, byte_tokenizer, [row])
    long = row._replace(answer=0, choices=("cat", "dog" * 20))
    with pytest.raises(EvaluationError, match="rows:4: its continuation has 61 tokens, the model takes 32"):
        choices(llama, byte_tokenizer, [long])
    with pytest.raises(TokenizerError, match="rows:4: "):
        choices(char_model, char_tokenizer, [row._replace(answer=0, choices=("XYZ", "dog"))])
    with pytest.raises(EvaluationError, match="rows:4 has no token before its continuation"):
        ContinuationReader(char_tokenizer, 32).stretch("", "the", place="rows:4")
    wordpiece = Tokenizer.train(["the cat sat on the mat"] * 9, kind="wordpiece", vocab_size=40)
    with pytest.raises(EvaluationError, match=r"rows:4: .*no token for the continuation '\\u200b'"):
        ContinuationReader(wordpiece, 32).stretch("the", "\u200b", place="rows:4")


def test_the_signature_names_the_start_token(llama, byte_tokenizer) -> None:
    rows = [ChoiceRow("the cat", "", ("sat", "ran"), 0, "rows.jsonl", 1)]
    behind_eos = byte_tokenizer.with_start(eos=True)
    assert behind_eos.start_id == byte_tokenizer.eos_id
    for tokenizer, start in ((byte_tokenizer, "no"), (behind_eos, "eos")):
        for scores in (
            choices(llama, tokenizer, rows),
            lambada(llama, tokenizer, [Passage("the cat", "sat")]),
        ):
            assert f"|start:{start}|" in scores["accuracy"].signature


def test_a_tokenizer_of_another_model_is_refused(llama, byte_tokenizer) -> None:
    larger = Tokenizer.train([" ".join(WORDS)], kind="bpe", vocab_size=300)
    assert larger.vocab_size > llama.config.vocab_size
    rows = [ChoiceRow("the cat", "", ("sat", "ran"), 0, "rows.jsonl", 1)]
    pairs = [MinimalPair("the cat sat", "the sat cat", "", "", "pairs.jsonl", 1)]
    encoder = sharpened(
        BertConfig(vocab_size=20, max_seq_len=32, dim=8, n_layers=1, n_heads=1, masked_lm_head=True)
    )
    wordpiece = Tokenizer.train([" ".join(WORDS)], kind="wordpiece", vocab_size=120)
    for call in (
        lambda: choices(llama, larger, rows),
        lambda: lambada(llama, larger, [Passage("the cat", "sat")]),
        lambda: acceptability(llama, larger, pairs),
        lambda: bits_by_position(llama, larger, ["the cat sat"]),
        lambda: perplexity(llama, larger, ["the cat sat"]),
        lambda: ablation(llama, larger, ["the cat sat"]),
        lambda: acceptability(encoder, wordpiece, pairs),
        lambda: pseudo_perplexity(encoder, wordpiece, ["the cat sat"]),
    ):
        with pytest.raises(EvaluationError, match=r"the tokenizer has \d+ tokens and the model"):
            call()
