"""Bits per byte by position: against the model's own log-probabilities, the command, and what is refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import EvaluationError
from wordloom.evaluate import perplexity
from wordloom.evaluate.positions import bits_by_position
from wordloom.models import LlamaConfig, RNNConfig, build
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXTS = ["The dog sat on the mat. " * 9, "A cat ran. ", "Ünïcode bytes — and more of them " * 3]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, kind="bpe", vocab_size=280)


def a_model(tokenizer: Tokenizer, **settings: Any) -> Any:
    model = build(LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_seq_len=64, dim=16, n_layers=2, n_heads=2, **settings
    ))  # fmt: skip
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.4)
    return model.eval()


def a_recurrent_model(tokenizer: Tokenizer) -> Any:
    config = RNNConfig(
        vocab_size=tokenizer.vocab_size, dim=12, cell=random.choice(["lstm", "gru", "rnn_tanh"])
    )
    return build(config, generator=torch.Generator().manual_seed(random.randrange(99))).eval()


@pytest.mark.parametrize("kind", ["llama", "recurrent", "recurrent behind eos", "llama behind eos"])
def test_groups_by_hand(tokenizer: Tokenizer, kind: str) -> None:
    window = random.choice([1, 7, 16, 17, 40, 64])
    tokenizer = tokenizer.with_start(eos="eos" in kind)
    model = a_model(tokenizer) if "llama" in kind else a_recurrent_model(tokenizer)
    lengths = tokenizer.byte_lengths()
    nats, sizes, counts = ([0.0] * window for _ in range(3))
    for text in TEXTS:
        ids = [tokenizer.eos_id, *tokenizer.encode(text).ids]
        for begin in range(0, len(ids) - 1, window):
            part = ids[begin : begin + window + 1]
            # the state of a recurrent model is empty there
            later = [tokenizer.eos_id] if begin and kind == "recurrent behind eos" else []
            logprobs = model(torch.tensor([[*later, *part[:-1]]]))[0].log_softmax(dim=-1)[len(later) :]
            for i, target in enumerate(part[1:]):
                nats[i] -= float(logprobs[i, target].detach())
                sizes[i] += float(lengths[target])
                counts[i] += 1
    found = bits_by_position(model, tokenizer, TEXTS, window=window)
    assert [group.first for group in found] == [n for n in (1, 17, 33) if n <= window and counts[n - 1]]
    for group in found:
        part = slice(group.first - 1, group.stop - 1)
        assert (group.tokens, group.bytes) == (sum(counts[part]), sum(sizes[part]))
        assert group.bits_per_byte == pytest.approx(sum(nats[part]) / math.log(2) / sum(sizes[part]))
    assert found[-1].stop == window + 1
    assert sum(group.bytes for group in found) == sum(len(text.encode()) for text in TEXTS)


def test_the_whole_is_the_score_of_evaluate(tokenizer: Tokenizer) -> None:
    model = a_model(tokenizer)
    found = bits_by_position(model, tokenizer, TEXTS, window=32)
    scores = perplexity(model, tokenizer, TEXTS, window=32, stride=32, end="none").scores
    (whole,) = (score.value for score in scores if score.name == "bits_per_byte")
    mean = sum(group.bits_per_byte * group.bytes for group in found) / sum(group.bytes for group in found)
    assert mean == pytest.approx(whole)


def test_what_has_no_positions(tokenizer: Tokenizer) -> None:
    model = a_model(tokenizer)
    for window in (0, 65):
        with pytest.raises(EvaluationError, match=f"a window of {window} tokens .* allowed: 1 to 64"):
            bits_by_position(model, tokenizer, TEXTS, window=window)
    with pytest.raises(EvaluationError, match="no token to predict"):
        bits_by_position(model, tokenizer, [""])
    with pytest.raises(EvaluationError, match="no longest text; say how many tokens it reads"):
        bits_by_position(build(RNNConfig(vocab_size=tokenizer.vocab_size, dim=8)), tokenizer, TEXTS)
    lossy = Tokenizer.train(TEXTS, kind="wordpiece", vocab_size=80)
    with pytest.raises(EvaluationError, match="bits per byte are undefined"):
        bits_by_position(a_model(lossy), lossy, TEXTS)


def test_the_view(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_model(a_model(tokenizer), tmp_path / name, tokenizer=tokenizer)
    (tmp_path / "text.txt").write_text(TEXTS[0])
    command = ["inspect", str(tmp_path / "one"), "positions", "--file", str(tmp_path / "text.txt")]
    plot = tmp_path / "positions.png"
    done = CliRunner().invoke(app, [*command, "--beside", str(tmp_path / "two"), "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    for words in ("tokens before", "one", "two", "1 to 16", "33 to 64"):
        assert words in done.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    asked = ["--attention", "full", "--attention", "band:3", "--window", "20", "--json"]
    found = json.loads(CliRunner().invoke(app, [*command, *asked]).output)
    assert list(found) == ["full", "band:3"]
    assert found["full"][1]["stop"] == 21
    assert found["full"][1]["bits_per_byte"] != found["band:3"][1]["bits_per_byte"]
