"""Last words: greedy accuracy against a greedy loop, perplexity against sums by hand."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tests.evaluate.conftest import sharpened

from wordloom.errors import DataError, EvaluationError, NonFiniteError
from wordloom.evaluate import Passage, lambada, passages
from wordloom.models import CBOWConfig, RNNConfig
from wordloom.text import Tokenizer


@torch.no_grad()
def greedy(model, ids, n):
    ids = list(ids)
    for _ in range(n):
        ids.append(int(model(torch.tensor([ids[-32:]]))[0, -1].argmax()))
    return ids[-n:]


@torch.no_grad()
def nats(model, ids, n):
    total = 0.0
    for i in range(len(ids) - n, len(ids)):
        total -= float(model(torch.tensor([ids[max(0, i - 32) : i]]))[0, -1].log_softmax(-1)[ids[i]])
    return total


FAMILIES = ["llama", "rnn_tanh", "lstm", "gru", "cbow"]


def model_of(family, char_model, char_tokenizer):
    if family == "llama":
        return char_model
    vocab_size = char_tokenizer.vocab_size
    if family == "cbow":
        return sharpened(CBOWConfig(vocab_size=vocab_size, dim=9, window=5))
    config = RNNConfig(vocab_size=vocab_size, dim=9, hidden_dim=11, n_layers=1, cell=family)
    return sharpened(config).double()  # with large weights, a state would enlarge roundings of float32


@pytest.mark.parametrize("family", FAMILIES)
def test_right_means_what_greedy_decoding_writes(family, char_model, char_tokenizer):
    """Continuations the model writes itself are right; those are wrong that end in another character."""
    t, char_model = char_tokenizer, model_of(family, char_model, char_tokenizer)
    made = []
    for context in ["The cat sat on the ", "A dog, ", "Nobody ", "why not? "]:
        written = t.decode(greedy(char_model, t.encode_ids(context), 4))
        made += [
            Passage(context, written),
            Passage(context, written[:3] + ("T" if written[3] != "T" else "c")),
        ]
    seen = []
    scores = lambada(char_model, t, made, batch_size=3, progress=lambda *s: seen.append(s))
    assert [is_right for is_right, _ in seen] == [True, False] * 4
    assert scores["accuracy"].value == 0.5
    assert scores.counts["right"] == 4
    assert sum(n for _, n in seen) == pytest.approx(scores.counts["nats"])


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexity_is_per_passage(family, char_model, char_tokenizer):
    t, char_model = char_tokenizer, model_of(family, char_model, char_tokenizer)
    made = [Passage("The cat sat on the", "mat"), Passage("A dog, too", "sat")]
    totals = [nats(char_model, t.encode_ids(f"{c} {w}"), 1 + len(w)) for c, w in made]
    scores = lambada(char_model, t, made)
    assert scores["perplexity"].value == pytest.approx(math.exp(sum(totals) / 2), rel=1e-5)
    assert re.match(r"lambada_accuracy\|text:\w{8}\|tok:char-", scores["accuracy"].signature)
    assert scores["accuracy"].signature != lambada(char_model, t, made[::-1])["accuracy"].signature
    assert "|start:no|" in scores["accuracy"].signature


def test_context_and_word_are_one_text_to_the_tokenizer(char_model):
    """Joined by one space unless one is there; a token across the join belongs to the continuation."""
    from wordloom.evaluate.continuations import _tokens

    lines = ["the cat sat on the mat " * 50]
    bpe = Tokenizer.train(lines, kind="bpe", vocab_size=290)
    for passage in [Passage("the cat sat on the", "mat"), Passage("the cat sat on the", " mat")]:
        ids, first = _tokens(bpe, *passage)
        assert bpe.decode(ids) == "the cat sat on the mat"
        assert bpe.decode(ids[:first]) == "the cat sat on the"
        assert bpe.decode(ids[first:]) == " mat"
    ids, first = _tokens(bpe, "the cat sat on the ", "mat")
    assert bpe.decode(ids) == "the cat sat on the mat"
    assert bpe.decode(ids[first:]) in (" mat", "mat")


def test_damaged_weights_are_named(char_model, char_tokenizer):
    damaged = deepcopy(char_model)
    with torch.no_grad():
        next(damaged.parameters()).fill_(math.nan)
    with pytest.raises(NonFiniteError, match="the model gives no finite probability"):
        lambada(damaged, char_tokenizer, [("ab ab", "ab")])


def test_long_passages_lose_their_beginning_and_that_is_said(char_model, char_tokenizer):
    t = char_tokenizer
    long = Passage("the cat sat on the mat and " * 4 + "the", "dog")
    scores = lambada(char_model, t, [long, Passage("the", "dog")])
    assert scores.counts["cut"] == 1
    assert scores.notes == ("1 passages are longer than the window and lost their beginning",)
    ids = t.encode_ids(f"{long.context} dog")[-33:]
    alone = lambada(char_model, t, [long])
    with torch.no_grad():
        log_p = char_model(torch.tensor([ids[:-1]]))[0, -4:].log_softmax(-1)
    expected = -float(log_p[range(4), ids[-4:]].sum())
    assert alone.counts["nats"] == pytest.approx(expected, rel=1e-5)


def test_mistakes(char_model, char_tokenizer, tmp_path):
    with pytest.raises(EvaluationError, match="no passage given"):
        lambada(char_model, char_tokenizer, [])
    with pytest.raises(EvaluationError, match="passage 1 has no token before its continuation"):
        lambada(char_model, char_tokenizer, [Passage("", "the")])
    with pytest.raises(EvaluationError, match="its continuation has 41 tokens, the model takes 32"):
        lambada(char_model, char_tokenizer, [Passage("the", "c" * 40)])
    path = tmp_path / "passages.jsonl"
    path.write_text('{"context": "a", "continuation": "b"}\n{"context": "a", "word": "b"}\n')
    with pytest.raises(DataError, match=r"passages\.jsonl:2: .*; the fields here are: context, word"):
        list(passages([str(path)]))
    path.write_text('{"context": "a", "continuation": ""}\n')
    with pytest.raises(DataError, match="needs a text 'continuation'"):
        list(passages([str(path)]))


def test_passages_are_read_as_written(tmp_path):
    path = tmp_path / "passages.jsonl.gz"
    made = [Passage("He said, \u201cyes\n", "sir"), Passage("<|endoftext|> is", "text")]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(p._asdict()) + "\n" for p in made)
    assert list(passages([str(path)])) == made


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
def test_stories260k_on_lambada():
    """A real model: on 40 passages, the nats equal a recomputation through the model's own forward pass."""
    from wordloom.weights import load_model

    folder = Path(os.environ["WORDLOOM_DATA"], "weights", "stories260K", "hf")
    model, tokenizer = load_model(folder), Tokenizer.from_pretrained(folder)
    some = [p for p, _ in zip(passages("lambada"), range(40), strict=False)]
    scores = lambada(model, tokenizer, some)
    total = 0.0
    for context, word in some:
        n = len(tokenizer.prompt_ids(f"{context} {word}")) - len(tokenizer.prompt_ids(context))
        ids = tokenizer.prompt_ids(f"{context} {word}")
        with torch.no_grad():
            log_p = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1)
        total -= float(sum(log_p[i - 1, ids[i]] for i in range(len(ids) - n, len(ids))))
    assert scores.counts["nats"] == pytest.approx(total, rel=1e-4)
    assert "|start:bos|" in scores["accuracy"].signature
    assert math.isfinite(scores["perplexity"].value)
