"""Train a recipe: the composition of text, data, model, objective, loop and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wordloom.data.batches import CausalBatches
from wordloom.errors import CheckpointError, DeviceError, RecipeError, did_you_mean
from wordloom.evaluate import evaluate_batches
from wordloom.generate import Sampling, generate_text
from wordloom.models import PRESETS, build, config_from, family_of
from wordloom.nn import set_attention_backend
from wordloom.nn.attention import running_kernel
from wordloom.objectives import OBJECTIVES
from wordloom.recipe import Recipe, load_recipe, without_effect
from wordloom.run.folder import RunFolder, resumed_recipe
from wordloom.run.prepare import Prepared, prepare_recipe
from wordloom.run.progress import TrainingProgress
from wordloom.text import Tokenizer
from wordloom.training import Evaluate, Log, Plan, Sample, Save, Trainer, make_plan, tune_allocator
from wordloom.training.checkpoint import (
    environment_changes,
    latest_checkpoint,
    read_state,
    sync_folder,
    write_checkpoint,
)
from wordloom.training.gradient_checkpointing import checkpoint_blocks
from wordloom.training.hooks import cut_metrics, finished_weights
from wordloom.training.plan import check_fits, smaller
from wordloom.training.precision import compile_blocks
from wordloom.training.trainer import to_device
from wordloom.weights import load_model, load_state, save_model

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the run is and how it ended; ``metrics`` are those of the last evaluation."""

    folder: Path
    step: int
    total_steps: int
    stopped: bool
    metrics: dict[str, float]
    plan: Plan | None


def train(
    recipe: str | Path | Recipe,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    start_from: str | Path | None = None,
    progress: TrainingProgress | None = None,
) -> TrainResult:
    """Train ``recipe`` into the folder ``out`` (``runs/NAME`` by default).

    The finished folder holds ``config.json``, ``model.safetensors``, ``tokenizer.json``, ``recipe.toml``,
    ``metrics.jsonl``, and what resuming needs in ``checkpoints/step-N``.  ``start_from`` begins with the
    weights and tokenizer of a checkpoint instead of fresh ones.

    Raises WordloomError for whatever the user can put right, NonFiniteError when the loss diverges.
    """
    loaded = load_recipe(recipe, overrides)
    if start_from is not None:
        loaded = loaded.model_copy(update={"start_from": str(start_from)})
    path = Path(out) if out is not None else Path("runs") / loaded.name
    progress = progress or TrainingProgress()
    if force and loaded.start_from and Path(loaded.start_from).resolve().is_relative_to(path.resolve()):
        raise CheckpointError(
            f"--force would remove the checkpoint {loaded.start_from} that --from names; choose another --out"
        )
    with RunFolder(path, resume=resume, force=force) as folder:
        checkpoint = latest_checkpoint(path) if resume else None
        if resume:
            loaded = resumed_recipe(loaded, folder.saved_recipe(Recipe))
            if checkpoint is None:
                progress.say("no checkpoint was written yet: starting at step 0")
        state = read_state(checkpoint) if checkpoint is not None else None
        return _train(loaded, folder, checkpoint, state, progress)


def _train(
    recipe: Recipe,
    run: RunFolder,
    checkpoint: Path | None,
    state: tuple[dict[str, torch.Tensor], dict[str, Any]] | None,
    progress: TrainingProgress,
) -> TrainResult:
    s, folder = recipe.train, run.path
    if s.threads is not None:
        torch.set_num_threads(s.threads)
    tuned = s.allocator == "tuned" and tune_allocator()
    given = checkpoint or (None if recipe.start_from is None else Path(recipe.start_from))
    for line in without_effect(s):
        progress.say(line)
    if given is not None:
        instead = "" if checkpoint else "; the recipe's [tokenizer] is not used"
        progress.say(f"start       weights and tokenizer of {given}{instead}")
    prepared = prepare_recipe(
        recipe, tokenizer=Tokenizer.from_pretrained(given) if given else None, progress=progress
    )
    facts = {
        "recipe": recipe.as_dict(),
        "data": prepared.fingerprint,
        "tokenizer": prepared.tokenizer.fingerprint,
    }
    if state is not None:
        _check_facts(facts, state[1], folder)
    model = _model(recipe, prepared, given)
    set_attention_backend(model, s.attention_backend)
    batches = prepared.batches
    trainer = Trainer(
        model,
        OBJECTIVES[s.objective],
        batches,
        s,
        total_steps=_steps_before_timing(recipe, batches),
        seed=recipe.seed,
    )
    if s.gradient_checkpointing:
        checkpoint_blocks(trainer.model)
    compiled = compile_blocks(trainer.model, s, trainer.device)
    attention = model.blocks[0].attention
    tokens = (s.micro_batch_size or s.batch_size) * s.seq_len
    kernel = running_kernel(
        s.attention_backend,
        head_dim=attention.head_dim,
        device=trainer.device,
        dtype=trainer.precision.compute_dtype,
        dropout=attention.dropout,
        masked=recipe.data.document_mask,
        elements=0 if compiled.startswith("compiled") else tokens * attention.n_heads * attention.head_dim,
    )
    progress.say(
        f"running     {trainer.device}, {trainer.precision.mode}, {compiled}, attention kernel '{kernel}', "
        f"{torch.get_num_threads()} threads, allocator {'tuned' if tuned else 'system'}"
    )
    known = state is not None and (
        s.minutes is None or state[1]["recipe"]["train"].get("minutes") == s.minutes
    )
    plan = make_plan(trainer, timed_steps=0 if known else 3)
    trainer.total_steps = _total_steps(recipe, batches, plan)
    if known and s.minutes is not None:
        assert state is not None
        trainer.total_steps = state[1]["total_steps"]  # minutes became steps once, when the run began
    plan = replace(plan, total_steps=trainer.total_steps)
    progress.say(plan.lines())
    if s.warmup_steps >= trainer.total_steps:
        progress.say(
            f"the warm-up of {s.warmup_steps:,} steps is longer than the run: the peak learning rate is not "
            "reached"
        )
    run.begin(recipe, prepared.ledger_json())

    last: dict[str, float] = {}
    save = _saver(recipe, folder, prepared, facts)
    log = Log(
        folder / "metrics.jsonl",
        every=s.log_every,
        report=progress.update,
        tokens_per_step=plan.tokens_per_step,
        flops_per_step=plan.flops_per_step,
        peak_flops=plan.peak_flops,
        writer=_tensorboard(folder) if s.tensorboard else None,
    )
    trainer.hooks = [
        Sample(_sampler(recipe, prepared.tokenizer), every=s.sample_every),
        log,
        Save(save, every=s.save_every, keep_best=s.keep_best),
    ]
    if prepared.validation is not None:
        trainer.hooks.insert(0, Evaluate(_evaluator(recipe, prepared, last), every=s.evaluate_every))
    if state is not None:
        tensors, values = state
        trainer.load_state_dict(tensors, {**values, "total_steps": trainer.total_steps})
        trainer.last_checkpoint = str(checkpoint)
        if (changes := environment_changes(trainer, values["environment"])) is not None:
            progress.say(changes)
        progress.say(f"resuming at step {trainer.step:,} of {trainer.total_steps:,} from {checkpoint}")
    cut_metrics(folder / "metrics.jsonl", trainer.step)

    progress.start(total=trainer.total_steps, done=trainer.step)
    try:
        ended = trainer.run()
    except torch.OutOfMemoryError:
        raise DeviceError(f"{trainer.device} is out of memory; {smaller(s)}") from None
    finally:
        progress.stop()
    if ended == "done":
        _finish(trainer, folder, recipe, prepared)
    return TrainResult(
        folder=folder,
        step=trainer.step,
        total_steps=trainer.total_steps,
        stopped=ended == "stopped",
        metrics=last,
        plan=plan,
    )


# -- the parts -------------------------------------------------------------------------------------------


def _model(recipe: Recipe, prepared: Prepared, given: Path | None) -> Any:
    """The recipe's model, fresh or with the weights of the checkpoint ``given``.

    A recipe without ``[model]`` takes the checkpoint's; one with it must agree with the checkpoint in
    everything but dropout and max_seq_len.
    """
    if given is not None and not recipe.model:
        model: Any = load_model(given, dtype=torch.float32)
    else:
        model = _new_model(recipe, prepared)
        if given is not None:
            load_state(model, given)
    if model.config.vocab_size < prepared.tokenizer.vocab_size:
        raise RecipeError(
            f"model.vocab_size {model.config.vocab_size} is below the tokenizer's "
            f"{prepared.tokenizer.vocab_size}; raise it, or leave it out"
        )
    return model


def _new_model(recipe: Recipe, prepared: Prepared) -> Any:
    settings = dict(recipe.model)
    preset = settings.pop("preset", None)
    family = settings.pop("family", None)
    if (preset is None) == (family is None):
        raise RecipeError("give either model.family with its settings, or model.preset")
    if preset is not None:
        if preset not in PRESETS:
            raise RecipeError(f"unknown model.preset {preset!r}; {did_you_mean(preset, PRESETS)}")
        base = PRESETS[preset]
        family = family_of(base)
        settings = {**vars(base), "vocab_size": prepared.tokenizer.vocab_size, **settings}
    settings.setdefault("vocab_size", prepared.tokenizer.vocab_size)
    settings.setdefault("max_seq_len", recipe.train.seq_len)
    config = config_from(family, **settings)
    if config.max_seq_len < recipe.train.seq_len:
        raise RecipeError(
            f"train.seq_len {recipe.train.seq_len} is above model.max_seq_len {config.max_seq_len}; "
            "raise the one or lower the other"
        )
    check_fits(config, recipe.train)
    return build(config, generator=torch.Generator().manual_seed(recipe.seed))


def _steps_before_timing(recipe: Recipe, batches: CausalBatches) -> int:
    """A total for the schedule of the timed steps, which are undone: any will do for a budget in minutes."""
    return 1000 if recipe.train.minutes is not None else _total_steps(recipe, batches, None)


def _total_steps(recipe: Recipe, batches: CausalBatches, plan: Plan | None) -> int:
    """The budget in optimizer steps, at least 1; minutes become steps by the timed ones."""
    s = recipe.train
    if s.steps is not None:
        return s.steps
    tokens_per_step = s.batch_size * s.seq_len
    if s.tokens is not None:
        return max(1, -(-s.tokens // tokens_per_step))
    if s.epochs is not None:
        return max(1, round(s.epochs * batches.samples_per_epoch / s.batch_size))
    if plan is None:
        return 1
    if s.flops is not None:
        return max(1, round(s.flops / plan.flops_per_step))
    assert s.minutes is not None
    if plan.step_seconds is None:  # a resumed run, whose count was settled when it began
        return 1
    return max(1, int(s.minutes * 60 / plan.step_seconds))


def _evaluator(
    recipe: Recipe, prepared: Prepared, last: dict[str, float]
) -> Callable[[Any], dict[str, float]]:
    """Validation loss over sequential windows, each target scored once with the context its window gives."""
    s = recipe.train
    validation, shards = prepared.validation, prepared.validation_shards
    assert validation is not None
    assert shards is not None
    windows = min(validation.samples_per_epoch, s.evaluate_windows or validation.samples_per_epoch)
    rows = s.micro_batch_size or s.batch_size

    def evaluate(model: Any) -> dict[str, float]:
        device = next(model.parameters()).device
        cut = ((start, min(rows, windows - start)) for start in range(0, windows, rows))
        batches = (to_device(validation.batch(start, count), device) for start, count in cut)
        loss = evaluate_batches(model, OBJECTIVES[s.objective], batches).value
        assert loss is not None
        figures = {"loss": loss}
        whole = windows == validation.samples_per_epoch and not validation.mask_document_starts
        if whole and prepared.tokenizer.lossless:
            # the text's first token has nothing before it and costs what a uniform guess does
            nats = loss * (len(shards) - 1) + math.log(shards.vocab_size)
            figures["bits_per_byte"] = nats / math.log(2) / shards.ledger.bytes
        last.clear()
        last.update(figures)
        return figures

    return evaluate


def _sampler(recipe: Recipe, tokenizer: Tokenizer) -> Callable[[Any], str]:
    s = recipe.train
    sampling = Sampling(max_new_tokens=s.sample_tokens, seed=recipe.seed, past="slide")

    def sample(model: Any) -> str:
        return s.sample_prompt + str(generate_text(model, tokenizer, s.sample_prompt, sampling))

    return sample


def _saver(recipe: Recipe, folder: Path, prepared: Prepared, facts: dict[str, Any]) -> Callable[..., None]:
    def save(trainer: Trainer, best_step: int | None) -> None:
        write_checkpoint(
            trainer,
            folder,
            write_model=lambda place: save_model(trainer.model, place, tokenizer=prepared.tokenizer),
            facts=facts,
            keep_last=recipe.train.keep_last,
            best_step=best_step,
        )

    return save


def _finish(trainer: Trainer, folder: Path, recipe: Recipe, prepared: Prepared) -> None:
    """Leave the finished model in the run's folder itself: the last weights, their average, or the best."""
    save_hook = next(hook for hook in trainer.hooks if isinstance(hook, Save))
    if recipe.train.keep_best and save_hook.best_step not in (None, trainer.step):
        best = load_model(folder / "checkpoints" / f"step-{save_hook.best_step}", dtype=None)
        save_model(best, folder, tokenizer=prepared.tokenizer, overwrite=True)
    else:
        with finished_weights(trainer) as model:
            save_model(model, folder, tokenizer=prepared.tokenizer, overwrite=True)
    sync_folder(folder)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError(
            "train.tensorboard needs the package tensorboard: pip install 'wordloom[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))


def _check_facts(facts: dict[str, Any], saved: dict[str, Any], folder: Path) -> None:
    for key, what in (("data", "the training text"), ("tokenizer", "the tokenizer")):
        if facts[key] != saved[key]:
            raise CheckpointError(
                f"{what} is not the one {folder} was trained with; put it back, or choose another --out"
            )
