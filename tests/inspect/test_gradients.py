"""How far a loss reaches back, against Jacobians multiplied by hand and what theory promises."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import ConfigError, GenerationError
from wordloom.inspect import draw_gradients, gradient_flow
from wordloom.models import GPT2Config, RNNConfig, build
from wordloom.text import Tokenizer
from wordloom.weights import save_model

V, H = 23, 8


def made(cell: str, *, n_layers: int = 1, **settings: Any) -> Any:
    config = RNNConfig(vocab_size=V, dim=H, n_layers=n_layers, cell=cell, dropout=0.3, **settings)
    return build(config, generator=torch.Generator().manual_seed(0))


def ids_of(n: int) -> list[int]:
    return torch.randint(0, V, (n,), generator=torch.Generator().manual_seed(1)).tolist()


def scaled(model: Any, sigma: float) -> Any:
    with torch.no_grad():
        for block in model.blocks:
            u = block.hidden_proj.weight
            u.mul_(sigma / torch.linalg.matrix_norm(u, 2))
    return model


@torch.no_grad()
def test_elmans_gradient_is_the_product_of_its_jacobians() -> None:
    model, ids, D = made("rnn_tanh").eval(), ids_of(12), 10
    flow = gradient_flow(model, ids, distance=D, windows=1)
    states = model.hidden(torch.tensor([ids[: D + 1]]))[0]  # [D + 1, H]
    head, u = model.lm_head.weight, model.blocks[0].hidden_proj.weight
    error = F.softmax(model.lm_head(states[-1]), dim=-1) - F.one_hot(torch.tensor(ids[D + 1]), V)
    gradient = error @ head  # of the loss with respect to h_T
    for distance in range(D + 1):
        assert flow.norms["layer 0 h"][distance] == pytest.approx(float(gradient.norm()), rel=1e-4)
        gradient = (gradient * (1 - states[D - distance] ** 2)) @ u


def test_below_one_it_must_vanish_and_no_faster_than_sigma_allows() -> None:
    flow = gradient_flow(scaled(made("rnn_tanh"), 0.7), ids_of(300), distance=40, windows=8)
    norms = flow.norms["layer 0 h"]
    assert all(norms[d] <= 0.7**d * norms[0] * 1.001 for d in range(41))
    assert flow.windows == 8
    assert flow.factor("layer 0 h") < 0.7
    assert "must vanish" in str(flow.recurrences[0])
    assert flow.recurrences[0].largest_singular_value == pytest.approx(0.7, rel=1e-5)
    reach = flow.reach("layer 0 h")
    assert reach is not None
    assert norms[reach] < 0.01 * norms[0] <= norms[reach - 1]


def test_relus_with_a_large_radius_explode() -> None:
    model = made("rnn_relu")
    with torch.no_grad():
        model.blocks[0].hidden_proj.weight.copy_(1.3 * torch.eye(H))
        model.blocks[0].input_proj.weight.abs_()
        model.token_embedding.weight.abs_()  # so that every unit stays on, and f' is 1
    flow = gradient_flow(model, ids_of(60), distance=20, windows=4)
    assert flow.factor("layer 0 h") == pytest.approx(1.3, rel=1e-4)
    assert flow.reach("layer 0 h") is None
    assert flow.recurrences[0].spectral_radius == pytest.approx(1.3, rel=1e-5)
    assert "may explode" in str(flow.recurrences[0])


def test_an_open_forget_gate_carries_the_cells_gradient() -> None:
    held = gradient_flow(made("lstm", forget_bias=8.0), ids_of(200), distance=60, windows=4)
    lost = gradient_flow(made("lstm", forget_bias=-2.0), ids_of(200), distance=60, windows=4)
    assert held.norms["layer 0 c"][60] > 0.5 * held.norms["layer 0 c"][0]
    assert lost.norms["layer 0 c"][60] < 1e-6 * lost.norms["layer 0 c"][0]
    assert held.recurrences == ()


@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_after", "lstm_1997"])
def test_the_model_is_left_as_it_was(cell: str) -> None:
    model = made(cell, n_layers=2)
    model.train()
    flow = gradient_flow(model, ids_of(50), distance=10, windows=3)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(block.recorded is None for block in model.blocks)
    parts = ("h", "c") if cell.startswith("lstm") else ("h",)
    assert list(flow.norms) == [f"layer {i} {part}" for i in range(2) for part in parts]
    assert flow.norms == gradient_flow(model.eval(), ids_of(50), distance=10, windows=3).norms
    assert flow.steps == 12


def test_in_a_transformer_every_token_is_as_near() -> None:
    config = GPT2Config(vocab_size=V, max_seq_len=64, dim=H, n_layers=3, n_heads=2)
    model = build(config, generator=torch.Generator().manual_seed(0))
    flow = gradient_flow(model, ids_of(200), distance=60, windows=4)
    assert list(flow.norms) == ["layer 0 input", "layer 1 input", "layer 2 input"]
    assert flow.steps == 3
    norms = flow.norms["layer 0 input"]
    assert max(norms[1:]) / min(norms[1:]) < 100
    assert not any(block._forward_pre_hooks for block in model.blocks)
    with pytest.raises(GenerationError, match="a distance of 64 reads 65 tokens and the model takes 64"):
        gradient_flow(model, ids_of(200), distance=64)


def test_too_little_to_read_is_said() -> None:
    with pytest.raises(GenerationError, match="the text has 11 tokens, and a distance of 10 needs 12"):
        gradient_flow(made("lstm"), ids_of(11), distance=10)
    with pytest.raises(ConfigError, match="1 or more"):
        gradient_flow(made("lstm"), ids_of(11), distance=0)


def test_the_command_prints_and_draws(tmp_path) -> None:
    text = "the cat sat on the mat and the dog sat by the door " * 8
    tokenizer = Tokenizer.train([text], kind="char")
    names = []
    for cell in ("lstm", "rnn_tanh"):
        config = RNNConfig(vocab_size=tokenizer.vocab_size, dim=H, cell=cell)
        save_model(build(config), tmp_path / cell, tokenizer=tokenizer)
        names.append(str(tmp_path / cell))
    command = ["inspect", names[0], "gradients", "--prompt", text, "--distance", "20", "--beside", names[1]]
    done = CliRunner().invoke(app, [*command, "--png", str(tmp_path / "flow.png")])
    assert done.exit_code == 0, done.output
    for words in ("lstm: gradient of the loss", "layer 1 c", "spectral radius", "longest way back: 22 steps"):
        assert words in done.output
    assert (tmp_path / "flow.png").read_bytes().startswith(b"\x89PNG")
    done = CliRunner().invoke(app, [*command, "--json"])
    found = json.loads(done.output)
    assert set(found) == {"lstm", "rnn_tanh"}
    assert len(found["lstm"]["norms"]["layer 0 h"]) == 21
    (tmp_path / "file.txt").write_text(text)
    for wrong, says in (
        (["inspect", names[0], "gradients"], "has no recipe.toml"),
        (["inspect", names[0], "gradients", "--prompt", "a", "--file", "b"], "give one of them"),
        (["inspect", names[0], "parameters", "--distance", "3"], "no such option: leave out --distance"),
    ):
        failed = CliRunner().invoke(app, wrong)
        assert failed.exit_code != 0
        assert says in str(failed.exception) + failed.output
    draw_gradients(tmp_path / "one.svg", {"one": gradient_flow(made("gru"), ids_of(40), distance=10)})
    assert (tmp_path / "one.svg").stat().st_size > 1000
