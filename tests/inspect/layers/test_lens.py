"""The logit lens: the last layer gives the model's logits, the others those that transformers would give."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import ConfigError, EvaluationError, GenerationError, NonFiniteError, WordloomError
from wordloom.inspect import lens, lens_summary
from wordloom.models import RNNConfig, build
from wordloom.weights import save_model


@pytest.mark.parametrize("family", ["gpt", "gpt2", "llama"])
def test_the_last_layer_gives_the_logits_of_the_model(family: str, rng: random.Random) -> None:
    model = random_model(family, rng)
    V = model.config.vocab_size
    ids = [rng.randrange(V) for _ in range(rng.randint(1, 23))]
    seen = lens(model, ids, top_k=V)
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0]
    expected = logits.log_softmax(-1)
    targets = [*ids[1:], int(logits[-1].argmax())]
    torch.testing.assert_close(seen.nats[-1], -expected[range(len(ids)), targets], rtol=1e-5, atol=1e-5)
    for at, target in enumerate(targets):
        order = sorted(range(V), key=lambda i: -float(logits[at, i]))
        assert int(seen.ranks[-1, at]) == order.index(target) + 1
        assert [int(name) for name, _ in seen.likeliest[-1][at]] == order
        assert sum(share for _, share in seen.likeliest[-1][at]) == pytest.approx(1, abs=1e-5)
    assert seen.targets == tuple(map(str, targets))


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_each_layer_is_that_of_transformers(family: str, rng: random.Random, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    model = random_model(family, rng)
    V = model.config.vocab_size
    ids = [rng.randrange(V) for _ in range(rng.randint(1, 23))]
    targets = [rng.randrange(V) for _ in ids]
    save_model(model, tmp_path / "m")
    kind = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    theirs: Any = kind.from_pretrained(tmp_path / "m", attn_implementation="eager").eval()
    with torch.no_grad():
        states = theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
        if family == "bert":
            logits = [theirs.cls(x[0]) for x in states]
        else:
            norm = theirs.transformer.ln_f if family == "gpt2" else theirs.model.norm
            # the last of them is behind the norm already
            logits = [theirs.lm_head(norm(x[0])) for x in states[:-1]] + [theirs.lm_head(states[-1][0])]
    seen = lens(model, ids, targets=targets, top_k=1)
    assert len(seen.nats) == len(logits) == model.config.n_layers + 1
    for layer, each in enumerate(logits):
        nats = -each.log_softmax(-1)[range(len(ids)), targets]
        torch.testing.assert_close(seen.nats[layer], nats, rtol=1e-4, atol=1e-4)


def test_a_summary_counts_what_single_texts_show(rng: random.Random) -> None:
    model = random_model(rng.choice(["gpt", "gpt2", "llama"]), rng)
    V = model.config.vocab_size
    windows = [[rng.randrange(V) for _ in range(rng.randint(1, 24))] for _ in range(rng.randint(2, 40))]
    counted: list[int] = []
    summary = lens_summary(model, iter(windows), progress=counted.append)
    views = [lens(model, w[:-1], targets=w[1:], top_k=1) for w in windows if len(w) > 1]
    nats = torch.cat([view.nats for view in views], dim=1)
    ranks = torch.cat([view.ranks for view in views], dim=1).float()
    assert summary.tokens == sum(counted) == nats.shape[1]
    torch.testing.assert_close(
        torch.tensor(summary.bits), nats.double().mean(1) / torch.log(torch.tensor(2.0)), rtol=1e-4, atol=1e-4
    )
    middle = (
        ranks.quantile(0.5, dim=1, interpolation="lower"),
        ranks.quantile(0.5, dim=1, interpolation="higher"),
    )
    assert summary.median_rank.tolist() == pytest.approx(((middle[0] + middle[1]) / 2).tolist())
    torch.testing.assert_close(torch.tensor(summary.best), (ranks == 1).double().mean(1))
    last = [name for view in views for ((name, _),) in view.likeliest[-1]]
    for layer, share in enumerate(summary.agrees):
        own = [name for view in views for ((name, _),) in view.likeliest[layer]]
        assert share == pytest.approx(sum(a == b for a, b in zip(own, last, strict=True)) / len(last))


def test_the_model_keeps_no_hooks_and_its_mode(rng: random.Random) -> None:
    model = random_model("llama", rng).train()
    lens(model, [1, 2, 3])
    with pytest.raises(ConfigError):
        lens(model, [1], top_k=0)
    assert model.training
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)


def test_mistakes_get_one_line(rng: random.Random) -> None:
    rnn = build(RNNConfig(vocab_size=9, dim=4), generator=torch.Generator().manual_seed(0))
    with pytest.raises(WordloomError, match="of type RNN, has none"):
        lens(rnn, [1, 2])
    model = random_model("gpt2", rng)
    with pytest.raises(GenerationError, match="24 tokens and the model takes 23"):
        lens(model, [1] * 24)
    with pytest.raises(GenerationError, match="no token to look at"):
        lens(model, [])
    with pytest.raises(EvaluationError, match="no token to predict"):
        lens_summary(model, [[1], []])
    with torch.no_grad():
        model.final_norm.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        lens(model, [1, 2])
    with pytest.raises(NonFiniteError):
        lens_summary(model, [[1, 2]])


def test_json_and_page_hold_what_was_seen(rng: random.Random) -> None:
    names = {0: "</script><b>", 1: "a&b", 2: "'\"", 3: "<s>"}
    model = random_model("llama", rng)
    seen = lens(model, [0, 1, 2, 3], lambda i: names.get(i, f"t{i}"))
    said = json.loads(json.dumps(seen.as_dict()))
    assert said["tokens"] == ["</script><b>", "a&b", "'\"", "<s>"]
    page = seen.html()
    data = page.split('id="lens">')[1].split("</script>")[0]
    assert json.loads(data)["tokens"] == said["tokens"]
    assert "http" not in page
    assert "<iframe" in seen._repr_html_()
