"""How far a loss reaches back, against Jacobians multiplied by hand and what theory promises."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.nn.adapters import WAYS
from torch.nn import functional as F
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.cli.inspect.causes.gradients import print_gradients
from wordloom.errors import ConfigError, GenerationError, NonFiniteError
from wordloom.inspect import GradientFlow, draw_gradients, gradient_flow
from wordloom.inspect.gradients import Recurrence
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
    assert "in the layer's linear range it explodes" in str(flow.recurrences[0])


def test_a_spectral_radius_of_zero_promises_nothing_where_a_unit_is_off() -> None:
    config = RNNConfig(vocab_size=5, dim=2, n_layers=1, cell="rnn_relu")
    model = build(config, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer = model.blocks[0]
        layer.hidden_proj.weight.copy_(torch.tensor([[1.5, -1.5], [1.5, -1.5]]))
        layer.input_proj.weight.zero_()
        layer.input_proj.bias.copy_(torch.tensor([1e-6, -1.0]))
    flow = gradient_flow(model, [1, 2, 3, 4] * 20, distance=30, windows=3)
    assert flow.factor("layer 0 h") == pytest.approx(1.5, rel=0.1)
    found = flow.recurrences[0]
    assert found.spectral_radius < 1e-3
    assert found.bound(1) == pytest.approx(3.0)
    assert found.bound(2000) == math.inf
    assert "3.000: it may vanish or explode" in str(found)
    assert "0.000: in the layer's linear range it does not explode" in str(found)
    with torch.no_grad():
        layer.hidden_proj.weight.copy_(torch.eye(2))
    found = gradient_flow(model, [1, 2, 3, 4] * 20, distance=3).recurrences[0]
    assert "1.000: it cannot explode" in str(found)
    assert "in the layer's linear range it does not explode" in str(found)
    rounded = replace(found, largest_singular_value=1.0000002, spectral_radius=1.0000001)
    assert str(rounded) == str(found)  # an orthogonal matrix, as float32 has it


def test_nothing_is_promised_of_a_modified_recurrence() -> None:
    model = made("rnn_tanh")
    assert gradient_flow(model, ids_of(60), distance=3).recurrences
    for modify in WAYS.values():
        model = made("rnn_tanh")
        for block in model.blocks:
            modify(block, "hidden_proj")
        assert not gradient_flow(model, ids_of(60), distance=3).recurrences


def test_what_are_no_numbers_is_refused() -> None:
    model = made("rnn_relu")
    with torch.no_grad():
        model.blocks[0].hidden_proj.weight.copy_(20 * torch.eye(H))
        model.blocks[0].input_proj.weight.zero_()
        model.blocks[0].input_proj.bias.fill_(1e-30)  # on, and of no weight for the loss
    says = r"the gradient of layer 0 h is inf at distance \d\d, beyond float32; give a smaller"
    with pytest.raises(NonFiniteError, match=says):
        gradient_flow(model, ids_of(60), distance=45)
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(NonFiniteError, match="loss on this text is nan; are its weights damaged"):
        gradient_flow(model, ids_of(60), distance=10)


@pytest.mark.parametrize("width", [36, 80, 200])
def test_the_table_fits_and_cuts_nothing(width: int) -> None:
    norms = {
        f"layer {i} {part}": tuple(1.234567e-5 * 0.9**d for d in range(1030))
        for i in (0, 10)
        for part in "hc"
    }
    said = io.StringIO()
    flow = GradientFlow(norms=norms, windows=4, recurrences=(Recurrence(
        layer=10, largest_singular_value=0.9, spectral_radius=0.5, gamma=1.0),), steps=1031)  # fmt: skip
    print_gradients(Console(file=said, width=width), "lstm", flow)
    lines = said.getvalue().split("\n")
    assert "…" not in said.getvalue()
    assert max(map(len, lines)) <= max(width, 45)
    heading, row = (
        next(line.split() for line in lines if begins in line) for begins in ("back", "layer 10 c")
    )
    shown = heading[2:-5]
    assert shown[0] == "0"
    assert len(row) == 3 + len(shown) + 2
    assert (shown[-1] == "1024") == (width > 36)
    assert len(shown) == {36: 1, 80: 4, 200: 12}[width]
    assert row[3] == "1.2e-05"
    assert row[-2:] == ["×0.900", "44"]


def test_the_picture_ends_where_the_gradient_does_and_has_the_bound(tmp_path, monkeypatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self.axes[0]))
    flow = gradient_flow(scaled(made("rnn_tanh", n_layers=2), 0.5), ids_of(200), distance=60, windows=2)
    draw_gradients(
        tmp_path / "one.png", {"small": flow, "gated": gradient_flow(made("gru"), ids_of(40), distance=9)}
    )
    axes = drawn[0]
    lines = {line.get_label(): line for line in axes.lines}
    norms = flow.norms["layer 1 h"]
    assert list(lines["small, layer 1 h"].get_ydata()) == [value / norms[0] for value in norms]
    assert norms[-1] / norms[0] < 1e-12 == axes.get_ylim()[0]
    bound = next(line for name, line in lines.items() if name.startswith("small, at most"))
    assert list(bound.get_ydata()) == pytest.approx([0.5**d for d in range(61)], rel=1e-4)
    assert not any(name.startswith("gated, at most") for name in lines)
    assert "last layer" in axes.get_title()


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
    done = CliRunner().invoke(app, [*command, "--plot", str(tmp_path / "flow.png")])
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
        (["inspect", names[0], "parameters", "--distance", "3"], "No such option: --distance"),
    ):
        failed = CliRunner().invoke(app, wrong)
        assert failed.exit_code != 0
        assert says in str(failed.exception) + failed.output
    draw_gradients(tmp_path / "one.svg", {"one": gradient_flow(made("gru"), ids_of(40), distance=10)})
    assert (tmp_path / "one.svg").stat().st_size > 1000
