"""Toy models of superposition: losses, geometry and training against closed forms."""

from __future__ import annotations

import itertools
import json
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.lab.superposition.features import run_features
from wordloom.lab.superposition.geometry import dimensionality, norms, polytopes, shared
from wordloom.lab.superposition.inputs import Inputs, by_pattern, even_points, sampled
from wordloom.lab.superposition.model import ToyModels, losses, new_models
from wordloom.lab.superposition.phases import expected_losses, phase_diagram, run_phases
from wordloom.lab.superposition.polytopes import run_polytopes
from wordloom.lab.superposition.theory import dropped_loss, solution_losses
from wordloom.lab.superposition.training import train


def generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.randrange(2**32))


def random_models(rng: random.Random, models: int, n: int, m: int, *, relu: bool = True) -> ToyModels:
    """Return models with random weights and biases."""
    return ToyModels(torch.randn(models, m, n), 0.3 * torch.randn(models, n), relu=relu)


def densities(rng: random.Random, count: int, lowest: float = 0.02) -> Tensor:
    return torch.tensor([rng.uniform(lowest, 1.0) for _ in range(count)])


# -- the model and its inputs


@pytest.mark.parametrize("relu", [True, False])
def test_the_batched_program_is_the_formula_for_each_model(rng: random.Random, relu: bool) -> None:
    count, B, n, m = (rng.randint(1, 6) for _ in range(4))
    models, importance = random_models(rng, count, n, m, relu=relu), torch.rand(count, n)
    inputs = sampled(densities(rng, count), n, B, generator(rng))
    losses(models, inputs, importance).sum().backward()
    for i in range(count):
        W, b = (p[i].detach().double().requires_grad_() for p in (models.weight, models.bias))
        expected = torch.zeros((), dtype=torch.float64)
        for x in inputs.x[i].double():
            out = W.T @ (W @ x) + b
            out = out.relu() if relu else out
            expected = expected + (importance[i].double() * (x - out) ** 2).sum() / B
        expected.backward()
        got = losses(models, inputs, importance)[i].detach().double()
        torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-6)
        for parameter, alone in ((models.weight, W), (models.bias, b)):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad[i].double(), alone.grad, rtol=1e-4, atol=1e-5)


def test_shared_rows_give_the_reconstructions_of_own_rows(rng: random.Random) -> None:
    count, B, n, m = (rng.randint(1, 6) for _ in range(4))
    models, x = random_models(rng, count, n, m), torch.rand(B, n)
    torch.testing.assert_close(models(x), models(x.expand(count, B, n)), rtol=1e-5, atol=1e-5)


def test_models_trained_together_are_the_models_trained_alone(rng: random.Random) -> None:
    count, n, m, seed = rng.randint(2, 4), rng.randint(1, 6), rng.randint(1, 3), rng.randrange(2**32)
    density, importance = densities(rng, count), torch.rand(count, n) + 0.1
    models = new_models(count, n, m, generator=generator(rng))
    alone = [ToyModels(models.weight[i : i + 1].detach().clone(), torch.zeros(1, n)) for i in range(count)]
    for one, own, weights in [(models, density, importance)] + [
        (each, density[i : i + 1], importance[i : i + 1]) for i, each in enumerate(alone)
    ]:
        draws = torch.Generator().manual_seed(seed)
        train(one, partial(sampled, own, n, 32, draws), weights, steps=20, learning_rate=1e-2)
    for i, each in enumerate(alone):
        torch.testing.assert_close(models.weight[i], each.weight[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(models.bias[i], each.bias[0], rtol=1e-3, atol=1e-4)


def test_inputs_have_the_density_and_are_uniform_where_present(rng: random.Random) -> None:
    density, rows, n = densities(rng, 3, 0.1), 40_000, 3
    x, weights = sampled(density, n, rows, generator(rng))
    assert x.shape == (3, rows, n)
    assert float(weights.sum()) == pytest.approx(1, rel=1e-4)
    present = x > 0
    torch.testing.assert_close(present.float().mean((1, 2)), density, rtol=0, atol=0.015)
    for i in range(3):
        values = x[i][present[i]]
        assert float(values.max()) <= 1
        assert float(values.mean()) == pytest.approx(1 / 2, abs=0.02)
        assert float(values.var()) == pytest.approx(1 / 12, abs=0.01)


def test_patterns_have_the_probabilities_of_independent_features(rng: random.Random) -> None:
    n, density = rng.randint(1, 4), densities(rng, 3)
    x, weights = by_pattern(density, torch.rand(5, n) * 0.9 + 0.1)
    torch.testing.assert_close(weights.sum(1), torch.ones(3))
    for pattern in itertools.product((False, True), repeat=n):
        rows = ((x > 0) == torch.tensor(pattern)).all(1)
        k = sum(pattern)
        torch.testing.assert_close(weights[:, rows].sum(1), density**k * (1 - density) ** (n - k))


def test_patterns_and_samples_have_one_expectation(rng: random.Random) -> None:
    n, m = rng.randint(1, 3), rng.randint(1, 3)
    density, importance = densities(rng, 2, 0.1), torch.rand(2, n)
    models = random_models(rng, 2, n, m)
    exact = expected_losses(models, density, importance)
    inputs = sampled(density, n, 200_000, generator(rng))
    error = (models(inputs.x) - inputs.x).square() @ importance[:, :, None]  # [I, B, 1]
    deviation = error[..., 0].std(1) / 200_000**0.5
    sampled_mean = losses(models, inputs, importance)
    assert bool(((sampled_mean - exact).abs() <= 6 * deviation + 2e-3 * exact).all())


# -- the geometry


def test_dimensionalities_sum_to_at_most_the_rank(rng: random.Random) -> None:
    for _ in range(20):
        m, n = rng.randint(1, 8), rng.randint(1, 30)
        rank = rng.randint(1, m)
        weight = (torch.randn(m, rank) @ torch.randn(rank, n)).double()
        weight[:, torch.rand(n) < 0.2] = 0
        found = dimensionality(weight)
        assert float(found.sum()) <= int(torch.linalg.matrix_rank(weight)) + 1e-9
        assert bool(((found >= 0) & (found <= 1 + 1e-12)).all())


def test_dimensionality_of_hand_built_directions(rng: random.Random) -> None:
    m = rng.randint(2, 6)
    basis = torch.linalg.qr(torch.randn(m, m, dtype=torch.float64)).Q
    scale = rng.uniform(0.3, 2.0)
    torch.testing.assert_close(dimensionality(scale * basis), torch.ones(m, dtype=torch.float64))
    pairs = torch.cat([basis, -basis], dim=1)
    torch.testing.assert_close(dimensionality(scale * pairs), torch.full((2 * m,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(shared(pairs), torch.ones(2 * m, dtype=torch.float64))
    torch.testing.assert_close(norms(scale * basis), torch.full((m,), scale, dtype=torch.float64))
    assert dimensionality(torch.zeros(m, 3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("points", "expected"),
    [(3, 2 / 3), (5, 2 / 5), ("tetrahedron", 3 / 4), ("antiprism", 3 / 8)],
)
def test_the_polytopes_of_the_paper_have_their_dimensionality(points: int | str, expected: float) -> None:
    if isinstance(points, int):
        angles = 2 * torch.pi * torch.arange(points) / points
        weight = torch.stack([angles.cos(), angles.sin()])
    elif points == "tetrahedron":
        weight = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1.0]]).T / 3**0.5
    else:  # two squares, one turned by 45 degrees, at the heights of a tight frame
        angles = torch.pi / 4 * torch.tensor([0, 2, 4, 6, 1, 3, 5, 7.0])
        heights = torch.tensor([1 / 3**0.5] * 4 + [-(1 / 3**0.5)] * 4)
        radius = (1 - heights.square()).sqrt()
        weight = torch.stack([radius * angles.cos(), radius * angles.sin(), heights])
    torch.testing.assert_close(dimensionality(weight), torch.full((weight.shape[1],), expected))
    found = polytopes(weight, torch.ones(weight.shape[1], dtype=torch.bool))
    assert [(len(each.features), each.dims) for each in found] == [(weight.shape[1], len(weight))]


def test_polytopes_are_found_in_orthogonal_subspaces(rng: random.Random) -> None:
    """A pair, a pentagon, a feature alone and one that is not represented, under a random rotation."""
    angles = 2 * torch.pi * torch.arange(5) / 5
    weight = torch.zeros(4, 9)
    weight[0, :2] = torch.tensor([1.0, -1.0])
    weight[1:3, 2:7] = torch.stack([angles.cos(), angles.sin()])
    weight[3, 7] = 1
    weight[:, 8] = 0.01 * torch.randn(4)
    order = torch.randperm(9)
    rotated = (torch.linalg.qr(torch.randn(4, 4)).Q @ weight)[:, order]
    found = polytopes(rotated, norms(rotated) > 0.5)
    assert sorted((len(each.features), each.dims) for each in found) == [(1, 1), (2, 1), (5, 2)]
    assert {int(order[i]) for each in found if len(each.features) == 5 for i in each.features} == set(
        range(2, 7)
    )
    assert polytopes(rotated, torch.zeros(9, dtype=torch.bool)) == []


# -- training against closed forms


def linear_loss(models: ToyModels, density: Tensor, importance: Tensor) -> Tensor:
    """Return the expected loss of linear models from the mean and the variance of independent features."""
    gram = models.weight.transpose(1, 2) @ models.weight
    residual = torch.eye(models.features) - gram  # [I, n, n]
    mean = residual @ (density[:, None, None] / 2).expand(-1, models.features, 1)
    offset = mean[..., 0] - models.bias  # [I, n]
    variance = dropped_loss(density)[:, None] * residual.square().sum(2)
    return (importance * (offset.square() + variance)).sum(1)


def test_the_linear_model_converges_to_the_principal_components(rng: random.Random) -> None:
    n = rng.randint(2, 6)
    m = rng.randint(1, n - 1)
    density = densities(rng, 4, 0.2)
    importance = torch.tensor([0.6**i for i in range(n)])[torch.randperm(n)]
    models = new_models(4, n, m, generator=generator(rng), relu=False)
    draw = partial(sampled, density, n, 256, generator(rng))
    train(models, draw, importance, steps=1_500, learning_rate=2e-2)
    kept = importance.argsort(descending=True)[:m]
    rest = importance.sum() - importance[kept].sum()
    with torch.no_grad():
        found = linear_loss(models, density, importance)
        torch.testing.assert_close(found, rest * dropped_loss(density), rtol=5e-3, atol=1e-5)
        assert bool((found >= rest * dropped_loss(density) * (1 - 1e-4)).all())  # the optimum
        expected = torch.zeros(n)
        expected[kept] = 1
        gram = models.weight.transpose(1, 2) @ models.weight
        torch.testing.assert_close(gram, torch.diag(expected).expand(4, n, n), rtol=0, atol=0.04)


def hand_built(n: int, dropped: int | None, pair: tuple[int, int] | None, density: float) -> ToyModels:
    """Return a model that drops a feature, or has an antipodal pair; the others have own dimensions."""
    weight, bias = torch.zeros(1, n - 1, n), torch.zeros(1, n)
    alone = [i for i in range(n) if i != dropped and (pair is None or i not in pair)]
    for row, i in enumerate(alone):
        weight[0, row, i] = 1
    if pair is not None:
        weight[0, -1, pair[0]], weight[0, -1, pair[1]] = 1, -1
    if dropped is not None:
        bias[0, dropped] = density / 2
    return ToyModels(weight, bias)


def test_the_closed_form_losses_are_those_of_the_hand_built_solutions(rng: random.Random) -> None:
    n, s, r = rng.randint(2, 4), rng.uniform(0.01, 1), rng.uniform(0.1, 10)
    importance = torch.ones(1, n)
    importance[0, -1] = r
    solutions = solution_losses(n, torch.tensor(s), torch.tensor(r))
    built = {
        "extra dropped": hand_built(n, n - 1, None, s),
        "other dropped": hand_built(n, 0, None, s),
        "extra in a pair": hand_built(n, None, (0, n - 1), s),
    }
    if n > 2:
        built["others in a pair"] = hand_built(n, None, (0, 1), s)
    assert set(built) == set(solutions)
    for name, model in built.items():
        loss = expected_losses(model, torch.tensor([s]), importance)
        assert float(loss) == pytest.approx(float(solutions[name]), rel=3e-3), name


def test_training_reaches_the_bound_of_the_hand_built_solutions(rng: random.Random) -> None:
    """The best of 32 starts counts, because some starts end in a local optimum."""
    for n in (2, 3):
        s = torch.tensor([10 ** rng.uniform(-1.5, 0) for _ in range(2)])
        r = torch.tensor([10 ** rng.uniform(-1, 1) for _ in range(2)])
        found = phase_diagram(n, s, r, steps=500, starts=32, seed=rng.randrange(2**32))
        bound = torch.stack(list(solution_losses(n, s[None], r[:, None]).values())).amin(0)
        torch.testing.assert_close(found.bound, bound)
        assert bool((found.loss <= 1.03 * bound).all()), (n, s, r, found.ratio)
        assert bool((found.loss >= 0.5 * bound).all())


def test_a_model_with_room_for_all_features_loses_nothing(rng: random.Random) -> None:
    """Also odd sizes: one feature, one dimension, more dimensions than features."""
    for n, m in ((1, 1), (1, 3), (2, 5), (3, 3)):
        models = new_models(3, n, m, generator=generator(rng))
        density = densities(rng, 3, 0.2)
        draw = partial(sampled, density, n, 128, generator(rng))
        train(models, draw, torch.ones(n), steps=600, learning_rate=2e-2)
        shares = expected_losses(models, density, torch.ones(3, n)) / (n * dropped_loss(density))
        assert float(shares.min()) < 0.02, (n, m)  # of three starts: one may have died at the ReLU


# -- the experiments


def test_one_seed_gives_one_result(rng: random.Random) -> None:
    seed = rng.randrange(2**32)
    for run in (
        partial(run_features, steps=2),
        partial(run_phases, steps=2, grid=2, starts=2),
        partial(run_polytopes, steps=2, inverse_densities=(1.0, 3.0)),
    ):
        first = json.dumps(run(seed=seed).as_dict())
        assert first == json.dumps(run(seed=seed).as_dict())
        assert first != json.dumps(run(seed=seed + 1).as_dict())


def test_steps_are_reported() -> None:
    seen: list[int] = []
    run_phases(steps=3, grid=1, starts=1, on_step=seen.append)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_the_even_points_cover_the_cube() -> None:
    points = even_points(4_096, 3)
    assert points.shape == (4_096, 3)
    torch.testing.assert_close(points.mean(0), torch.full((3,), 0.5), rtol=0, atol=1e-3)
    torch.testing.assert_close(points.square().mean(0), torch.full((3,), 1 / 3), rtol=0, atol=1e-3)


def test_mistakes_are_errors() -> None:
    some = torch.Generator()
    with pytest.raises(ConfigError, match="1 or more"):
        new_models(1, 0, 2, generator=some)
    with pytest.raises(ConfigError, match=r"\[I, m, n\]"):
        ToyModels(torch.zeros(2, 3), torch.zeros(2, 3))
    for density in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="above 0 and at most 1"):
            sampled(torch.tensor([density]), 2, 3, some)
    with pytest.raises(ConfigError, match="at most 10 features"):
        by_pattern(torch.ones(1), torch.rand(2, 11))
    with pytest.raises(ConfigError, match="2 features or more"):
        solution_losses(1, torch.ones(1), torch.ones(1))
    with pytest.raises(ConfigError, match="steps must be 1 or more"):
        train(
            new_models(1, 1, 1, generator=some),
            lambda: Inputs(torch.ones(1, 1), torch.ones(1)),
            torch.ones(1),
            steps=0,
            learning_rate=0.1,
        )
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        run_polytopes(steps=1, inverse_densities=(0.5,))


# -- the commands


@pytest.mark.parametrize(("name", "steps"), [("features", 4), ("phases", 1), ("polytopes", 1)])
def test_a_command_writes_a_picture_and_the_measurements(
    printed: partial, tmp_path: Path, name: str, steps: int
) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("lab", "superposition", name, "--steps", steps, "--out", tmp_path / "new" / "lab")
    done = printed(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == steps
    assert all(set(claim) == {"paper", "measured"} for claim in found["claims"])
    folder = tmp_path / "new" / "lab"
    assert {path.name for path in folder.iterdir()} == {f"{name}.png", f"{name}.json"}
    assert json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) == found
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    again = printed(*arguments)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "exists; choose another name, or replace it with --force" in again.stderr


def test_mistakes_on_the_command_line_are_one_line(printed: partial, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, message in (
        (("features", "--steps", 0), "--steps"),
        (("phases", "--seed", -1), "--seed"),
        (("polytopes", "--force"), "without --out no file is written: leave out --force"),
        (("features", "--out", tmp_path / "file"), "is not a folder"),
        (("features", "--out", tmp_path / "file" / "below"), "cannot be written"),
        (("feature",), "Did you mean 'features'?"),
    ):
        done = printed("lab", "superposition", *arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert message in done.stderr, done.stderr


def test_ctrl_c_ends_without_files(forked: partial, tmp_path: Path) -> None:
    import signal
    import time

    out = tmp_path / "out"
    started = forked("lab", "superposition", "polytopes", "--steps", 100_000, "--out", out)
    time.sleep(4)
    started.send_signal(signal.SIGINT)
    stdout, stderr = started.communicate()
    assert started.returncode == 130, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert not out.exists()
