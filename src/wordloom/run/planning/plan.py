"""Plan a recipe on GPUs: whether it fits, how fast it trains, and what to change if it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """A change of one setting, and the bytes of a rank after it.

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
        changes: settings to change if the run does not fit, the most effective first.
        together: the bytes of a rank with all changes.
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
    together: int | None = None
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
            "bytes_with_all_changes": self.together,
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
    changes, together = _advice(plan)
    return replace(plan, changes=changes, together=together)


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
    return ClusterPlan(
        recipe=recipe,
        hardware=hardware,
        shape=shape,
        layout=layout,
        rows=rows,
        parts=parts,
        memory=peak_memory(shape, s, layout, rows=rows, parts=parts, compiled=compiled),
        speed=speed_of(
            shape, s, Cluster(gpu=hardware.gpu, layout=layout, utilisation=hardware.utilisation),
            rows=rows, parts=parts,
        ),
        steps=_steps(recipe, shape),
        notes=tuple(_notes(recipe, hardware)),
    )  # fmt: skip


def _steps(recipe: Recipe, shape: ModelShape) -> int | None:
    """Return the steps of the budget, or None for epochs and minutes, which need the data or the GPUs."""
    s = recipe.train
    tokens = s.batch_size * s.seq_len
    if s.steps is not None:
        return s.steps
    if s.tokens is not None:
        return max(1, -(-s.tokens // tokens))
    if s.flops is not None:
        return max(1, round(s.flops / (flops_per_token(shape.config, context=s.seq_len).training * tokens)))
    return None


def _notes(recipe: Recipe, hardware: Hardware) -> list[str]:
    s, notes = recipe.train, []
    if s.batch_size % hardware.gpus:
        notes.append(
            f"train.batch_size {s.batch_size} does not divide by {hardware.gpus} GPUs: some wait for others"
        )
    if s.epochs is not None or s.minutes is not None:
        budget = "train.epochs" if s.epochs is not None else "train.minutes"
        notes.append(
            f"the steps of {budget} are not known before the data is read; give train.tokens=NUMBER for days"
        )
    if isinstance(recipe.data, CausalData) and recipe.data.document_mask:
        notes.append("the masks of data.document_mask are not counted")
    return notes


# -- what to change ----------------------------------------------------------------------------------------


def _advice(plan: ClusterPlan) -> tuple[tuple[Change, ...], int | None]:
    """Return the changes that leave the fewest bytes, and the bytes that all of them leave together."""
    found: list[tuple[Change, ClusterPlan, tuple[str, Any]]] = []
    for setting, update in _candidates(plan):
        try:
            after = _changed(plan, [update])
        except (RecipeError, DeviceError, ValueError):
            continue  # the recipe does not allow it
        if after.memory.total < plan.memory.total:
            change = Change(setting=setting, total=after.memory.total, fits=after.fits)
            found.append((change, after, update))
    found.sort(key=lambda each: each[0].total)
    best = found[:MOST_ADVICE]
    if len(best) < 2:
        return tuple(change for change, _, _ in best), None
    try:
        together = _changed(plan, [update for _, _, update in best]).memory.total
    except (RecipeError, DeviceError, ValueError):
        together = None
    return tuple(change for change, _, _ in best), together


def _candidates(plan: ClusterPlan) -> list[tuple[str, tuple[str, Any]]]:
    """Return changes of one setting: as they are given on the command line, and as (name, value)."""
    s, gpus = plan.recipe.train, plan.hardware.gpus
    candidates: list[tuple[str, tuple[str, Any]]] = []
    if gpus > 1 and s.shard != "full":
        candidates.append(("train.shard=full", ("shard", "full")))
    if plan.rows > 1:
        candidates.append(("train.micro_batch_size=1", ("micro_batch_size", 1)))
    if not s.gradient_checkpointing:
        candidates.append(("train.gradient_checkpointing=true", ("gradient_checkpointing", True)))
    candidates += [
        (f"train.precision={mode}", ("precision", mode))
        for mode in ("bf16", "bf16-pure")
        if s.precision != mode
    ]
    if s.shard != "none":
        candidates.append((f"--gpus {2 * gpus}", ("gpus", 2 * gpus)))
    if s.seq_len > 256:
        candidates.append((f"train.seq_len={s.seq_len // 2}", ("seq_len", s.seq_len // 2)))
    if s.optimizer == "adamw":
        candidates.append(("train.optimizer=sgd", ("optimizer", "sgd")))
    if s.optimizer == "muon":
        candidates.append(("train.optimizer=adamw", ("optimizer", "adamw")))
    if plan.recipe.start_from is not None and plan.recipe.lora is None:
        candidates.append(("lora.rank=8", ("lora", {"rank": 8})))
    return candidates


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
