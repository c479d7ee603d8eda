"""Plan a recipe on GPUs: whether it fits, how fast it trains, and what to change if it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from wordloom.errors import DeviceError, RecipeError
from wordloom.models.building.cost import flops_per_token
from wordloom.recipe import Recipe
from wordloom.recipe.data import CausalData
from wordloom.run.planning.gpus import Gpu
from wordloom.run.planning.layout import Layout, layout_of
from wordloom.run.planning.memory import Memory, peak_memory
from wordloom.run.planning.model import recipe_called, recipe_shape
from wordloom.run.planning.shapes import ModelShape
from wordloom.run.planning.speed import Cluster, Speed, speed_of
from wordloom.training.ranks import Ranks

USABLE = 0.9  # of the memory of a GPU: CUDA, NCCL and gaps between blocks take the rest
MOST_ADVICE = 3  # settings that a plan advises to change
MOST_GPUS = 1 << 17  # that are tried where no setting suffices
LEAST_STEP = 0.01  # seconds below which the start of computations decides, which the plan does not know


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The GPUs to plan for.

    Attributes:
        gpu: the kind of GPU.
        gpus: their number.
        per_machine: the GPUs of a machine.
        utilisation: the share of the peak FLOP rate that the computation reaches.
    """

    gpu: Gpu
    gpus: int
    per_machine: int = 8
    utilisation: float = 0.4


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one setting after others, and the bytes of a rank with all of them.

    Attributes:
        setting: as it is given on the command line.
        total: the bytes of a rank at the peak.
        fits: a GPU has this memory.
    """

    setting: str
    total: int
    fits: bool


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The plan of a run on several GPUs.

    Attributes:
        recipe, hardware, shape, layout: what is planned.
        rows, parts: the rows of a micro-batch on one rank, and its micro-batches in a step.
        memory: of the rank that needs most.
        speed: of training.
        steps: the steps of the run; None: the budget depends on the data or on this machine.
        changes: settings to change one after another if the run does not fit.
        enough: the number of GPUs on which it fits with the changes, if they do not suffice.
        notes: what the plan leaves out.
    """

    recipe: Recipe
    hardware: Hardware
    shape: ModelShape
    layout: Layout
    rows: int
    parts: int
    memory: Memory
    speed: Speed
    steps: int | None
    changes: tuple[Change, ...] = ()
    enough: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def available(self) -> int:
        """The bytes of a GPU that training can use."""
        return round(self.hardware.gpu.memory * 2**30 * USABLE)

    @property
    def fits(self) -> bool:
        """Whether a GPU has the memory that a rank needs."""
        return self.memory.total <= self.available

    @property
    def tokens(self) -> int | None:
        """The tokens of the run."""
        return None if self.steps is None else self.steps * self.speed.tokens

    @property
    def seconds(self) -> float | None:
        """The seconds of the run, without evaluation and checkpoints."""
        return None if self.steps is None else self.steps * self.speed.step_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values: bytes, seconds and operations."""
        s, speed = self.recipe.train, self.speed
        return {
            "recipe": self.recipe.name,
            "parameters": self.shape.parameters,
            "trained_parameters": self.shape.elements(trained=True),
            "gpus": self.hardware.gpus,
            "gpus_per_machine": self.layout.per_machine,
            "shard": s.shard,
            "precision": s.precision,
            "micro_batch_size": self.rows,
            "micro_batches": self.parts,
            "bytes_per_rank": {**self.memory.by_kind, "total": self.memory.total},
            "peak_moment": self.memory.moment,
            "available_bytes": self.available,
            "fits": self.fits,
            "start_host_bytes": self.memory.start,
            "checkpoint_host_bytes": self.memory.checkpoint,
            "flops_per_token": speed.flops_per_token,
            "flops_per_step": speed.flops_per_token * speed.tokens,
            "flops": None if self.tokens is None else speed.flops_per_token * self.tokens,
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_per_step": speed.tokens,
            "tokens_per_second": speed.tokens_per_second,
            "seconds_per_step": speed.step_seconds,
            "seconds": self.seconds,
            "utilisation": self.hardware.utilisation,
            "model_flop_utilisation": speed.model_utilisation,
            "bytes_sent_per_step": round(speed.traffic),
            "seconds_per_micro_batch": {
                "forward": vars(speed.forward),
                "backward": vars(speed.backward),
                "exposed_communication": speed.exposed,
            },
            "communication_hides": speed.hides,
            "tokens_per_gpu": speed.micro_tokens,
            "least_tokens_per_gpu": speed.least_tokens,
            "changes": [vars(change) for change in self.changes],
            "gpus_that_suffice": self.enough,
            "notes": list(self.notes),
        }


def plan_recipe(
    name: str,
    overrides: Sequence[str] = (),
    *,
    hardware: Hardware,
    say: Callable[[str], None] | None = None,
) -> ClusterPlan:
    """Return the plan of the recipe or preset called ``name`` on ``hardware``.

    Raises WordloomError for a recipe that cannot be planned, and for hardware that it cannot run on.
    """
    recipe = recipe_called(name, overrides, gpus=hardware.gpus, say=say)
    plan = _plan(recipe, hardware)
    if plan.fits:
        return plan
    changes, enough = _advice(plan)
    return replace(plan, changes=changes, enough=enough)


def _plan(recipe: Recipe, hardware: Hardware, shape: ModelShape | None = None) -> ClusterPlan:
    s = recipe.train
    if s.precision == "auto":  # what the trainer chooses on GPUs that compute in bfloat16
        s = s.model_copy(update={"precision": "bf16"})
        recipe = recipe.model_copy(update={"train": s})
    shape = recipe_shape(recipe) if shape is None else shape
    layout = layout_of(s.shard, hardware.gpus, hardware.per_machine)
    if hardware.gpus % layout.per_machine:
        raise DeviceError(
            f"--gpus {hardware.gpus} does not divide into machines of {layout.per_machine} "
            "(--gpus-per-machine); give a multiple"
        )
    if layout.machines > 1 and not hardware.gpu.network:
        raise DeviceError(
            f"{layout.machines} machines need a network whose speed is not known; give --network GB/s for "
            "each GPU, or --gpus-per-machine"
        )
    last = Ranks(hardware.gpus - 1, hardware.gpus)  # no rank has more rows
    of_step = last.parts(s.batch_size, s.micro_batch_size)
    rows, parts = max(part.count for part in of_step), len(of_step)
    compiled = s.compile != "off"
    cluster = Cluster(gpu=hardware.gpu, layout=layout, utilisation=hardware.utilisation)
    speed = speed_of(shape, s, cluster, rows=rows, parts=parts)
    return ClusterPlan(
        recipe=recipe,
        hardware=hardware,
        shape=shape,
        layout=layout,
        rows=rows,
        parts=parts,
        memory=peak_memory(shape, s, layout, rows=rows, parts=parts, compiled=compiled),
        speed=speed,
        steps=_steps(recipe, shape, speed),
        notes=tuple(_notes(recipe, hardware, speed)),
    )


def _steps(recipe: Recipe, shape: ModelShape, speed: Speed) -> int | None:
    """Return the steps of the budget, or None for epochs, which need the data."""
    s = recipe.train
    tokens = s.batch_size * s.seq_len
    if s.steps is not None:
        return s.steps
    if s.tokens is not None:
        return max(1, -(-s.tokens // tokens))
    if s.flops is not None:
        return max(1, round(s.flops / (flops_per_token(shape.config, context=s.seq_len).training * tokens)))
    if s.minutes is not None:
        return max(1, round(60 * s.minutes / speed.step_seconds))
    return None


def _notes(recipe: Recipe, hardware: Hardware, speed: Speed) -> list[str]:
    s, notes = recipe.train, []
    if s.batch_size % hardware.gpus:
        notes.append(
            f"train.batch_size {s.batch_size} does not divide by {hardware.gpus} GPUs: some wait for others"
        )
    if s.epochs is not None:
        notes.append(
            "the steps of train.epochs are not known before the data is read; give train.tokens=NUMBER for "
            "days"
        )
    if speed.step_seconds < LEAST_STEP:
        notes.append(
            "a step will take longer: starting its computations on a GPU takes some "
            f"{1000 * LEAST_STEP:.0f} ms"
        )
    if isinstance(recipe.data, CausalData) and recipe.data.document_mask:
        notes.append("the masks of data.document_mask are not counted")
    return notes


# -- what to change ----------------------------------------------------------------------------------------


def _advice(plan: ClusterPlan) -> tuple[tuple[Change, ...], int | None]:
    """Return changes to make one after another, and the number of GPUs that fits the run with its own result.

    The number is None if changes that keep the result are enough, and if no number is.

    Of all sets of at most three changes that fit, it is the one that changes least: the fewest that change
    the result, then the fewest of all.  If no set fits, it is the one that leaves the fewest bytes.
    """
    equal, others = _candidates(plan)
    sets = [
        (len(lossy), len(kept) + len(lossy), (*kept, *lossy))
        for lossy in _subsets(others)
        for kept in _subsets(equal)
        if 1 <= len(kept) + len(lossy) <= MOST_ADVICE
    ]
    best: tuple[Any, tuple[tuple[str, Any], ...]] | None = None
    keeps_result = False
    for lossy_count, count, updates in sorted(sets, key=lambda each: each[:2]):
        if best is not None and best[0][0] == 0 and best[0][1:3] < (lossy_count, count):
            break  # a smaller change fits
        try:
            after = _changed(plan, updates)
        except (RecipeError, DeviceError, ValueError):
            continue  # the recipe does not allow it
        total = after.memory.total
        if total >= plan.memory.total:
            continue
        keeps_result |= after.fits and not lossy_count
        key = (0, lossy_count, count, total) if after.fits else (1, total)
        if best is None or key < best[0]:
            best = key, updates
    changes = [] if best is None else _one_after_another(plan, best[1])
    if keeps_result:
        return tuple(changes), None
    try:
        kept_plan = _changed(plan, equal)
    except (RecipeError, DeviceError, ValueError):
        kept_plan = plan
    return tuple(changes), _enough(kept_plan)


def _subsets(items: Sequence[tuple[str, Any]]) -> list[tuple[tuple[str, Any], ...]]:
    return [subset for size in range(MOST_ADVICE + 1) for subset in combinations(items, size)]


def _one_after_another(plan: ClusterPlan, updates: Sequence[tuple[str, Any]]) -> list[Change]:
    """Return each of ``updates`` with the bytes of a rank after it and those before."""
    changes = []
    for number, (name, value) in enumerate(updates, start=1):
        after = _changed(plan, updates[:number])
        changes.append(Change(setting=_as_given(name, value), total=after.memory.total, fits=after.fits))
    return changes


def _enough(plan: ClusterPlan) -> int | None:
    """Return the number of GPUs on which the plan fits if they share out the weights; None if none does."""
    gpus = plan.hardware.gpus
    while (gpus := 2 * gpus) <= MOST_GPUS:
        try:
            if _changed(plan, [("gpus", gpus), ("shard", "full")]).fits:
                return gpus
        except (RecipeError, DeviceError, ValueError):
            return None
    return None


def _as_given(name: str, value: Any) -> str:
    """Return a change as it is given on the command line."""
    if name == "lora":
        return f"lora.rank={value['rank']}"
    return f"train.{name}={str(value).lower() if isinstance(value, bool) else value}"


def _candidates(plan: ClusterPlan) -> list[list[tuple[str, Any]]]:
    """Return changes of one setting: those that keep the result, and those that do not."""
    s = plan.recipe.train
    equal: list[tuple[str, Any]] = []
    if plan.hardware.gpus > 1 and s.shard != "full":
        equal.append(("shard", "full"))
    if plan.rows > 1:
        equal.append(("micro_batch_size", 1))
    if not s.gradient_checkpointing:
        equal.append(("gradient_checkpointing", True))
    if s.precision == "fp32":
        equal.append(("precision", "bf16"))
    others: list[tuple[str, Any]] = []
    if plan.recipe.start_from is not None and plan.recipe.lora is None:
        others.append(("lora", {"rank": 8}))
    if s.precision != "bf16-pure":
        others.append(("precision", "bf16-pure"))
    if s.seq_len > 256:
        others.append(("seq_len", s.seq_len // 2))
    if s.optimizer == "adamw":
        others.append(("optimizer", "sgd"))
    if s.optimizer == "muon":
        others.append(("optimizer", "adamw"))
    return [equal, others]


def _changed(plan: ClusterPlan, updates: Sequence[tuple[str, Any]]) -> ClusterPlan:
    """Return the plan with other settings; the batch of all ranks has as many rows as before."""
    recipe, hardware = plan.recipe, plan.hardware
    shape: ModelShape | None = plan.shape
    values = recipe.as_dict()
    for name, value in updates:
        if name == "gpus":
            hardware = replace(hardware, gpus=value)
        elif name == "lora":
            values["lora"], shape = value, None
        else:
            values["train"][name] = value
    return _plan(Recipe.model_validate(values), hardware, shape)
