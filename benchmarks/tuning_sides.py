"""Instruction tuning with Wordloom's trainer, and with trl's SFTTrainer and peft, in equal settings.

Each ``*_side`` function builds a trainer from the folder of a base model and a file of conversations, and
returns a :class:`Side`.  ``Side.train(after_step)`` runs the library's own loop, which calls ``after_step``
with the loss at the end of every step.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LEARNING_RATE, BETAS, EPSILON, CLIP = 1e-4, (0.9, 0.95), 1e-8, 1.0
RANK, ALPHA = 8, 16.0
STEPS = 1 << 20  # more than a benchmark takes
DATA = ("instruction-1100", "alpaca-demo")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A LLaMA, the longest row, and a batch: ``conversations`` if padded, ``windows`` if packed."""

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    tied: bool = True
    longest: int = 512
    conversations: int = 10  # about as many tokens as in the windows
    windows: int = 2

    def rows(self, packed: bool) -> int:
        """Return the samples of a batch."""
        return self.windows if packed else self.conversations


SHAPES = {
    "llama-6m": Shape(vocab=8192, dim=256, layers=6, heads=4, kv_heads=2, hidden=704),
    "llama-30m": Shape(vocab=8192, dim=512, layers=8, heads=8, kv_heads=4, hidden=1408),
    "llama-125m": Shape(
        vocab=32000, dim=768, layers=12, heads=12, kv_heads=4, hidden=2048, tied=False
    ),  # that of training_sides.py
    "tiny": Shape(
        vocab=600, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, longest=128, conversations=2, windows=1
    ),  # for --quick
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """The settings of one comparison, equal for every side."""

    shape: Shape
    precision: str
    lora: bool
    packed: bool
    base: Path
    data: Path
    threads: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """A trainer that is ready to run.

    Attributes:
        model: the model with its adapter, if it has one.
        tokens: the tokens of each sample in the order of training, without padding.
        digest: a digest of the ids and of the scored positions of all conversations; None if the library
            no longer holds them one by one.
        train: runs the loop, which calls its argument with the loss after every step.
        separate_loss: returns the loss of the first batch with every conversation in a row of its own.
    """

    model: Any
    tokens: Sequence[int]
    digest: str | None
    train: Callable[[Callable[[float], None]], None]
    separate_loss: Callable[[], float]


def digest_of(rows: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> str:
    """Return a digest of (ids, scored) of each conversation; the first token is never scored."""
    digest = hashlib.sha256()
    for ids, scored in rows:
        digest.update(repr((list(map(int, ids)), [bool(s) for s in scored[1:]])).encode())
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------------------------------------- Wordloom


def wordloom_side(work: Work) -> Side:
    """Return the run of a recipe: its task, its adapter and its trainer, without saving and evaluation."""
    from wordloom.data.batches.conversations import ConversationBatches
    from wordloom.data.batches.conversations import packed as packed_windows
    from wordloom.objectives import objective
    from wordloom.progress import TrainingProgress
    from wordloom.recipe import load_recipe
    from wordloom.run.tasks.instruction import instruction_task
    from wordloom.run.tasks.lora import with_lora
    from wordloom.training.trainer import Hook, StepRecord, Trainer

    class AfterStep(Hook):
        def __init__(self, call: Callable[[float], None]) -> None:
            self.call = call

        def after_step(self, trainer: Trainer, record: StepRecord) -> None:
            self.call(record["loss_total"] / record["loss_count"])

    recipe = load_recipe(_recipe(work))
    progress = TrainingProgress()
    task: Any = instruction_task(recipe, work.base, progress)
    if work.lora:
        task = with_lora(recipe, work.base, None, task, progress)
    rows = task.batches.rows
    seq_len = work.shape.longest if work.packed else None
    batches = ConversationBatches(rows, seq_len=seq_len, pad_id=task.batches.pad_id, order="sequential")
    trainer = Trainer(task.build_model(), objective("instruction"), batches, task.settings, total_steps=STEPS)
    task.set_up(trainer)
    lengths = rows.tokens.lengths.tolist()
    windows = packed_windows(rows.inputs, seq_len) if seq_len else [[row] for row in range(len(lengths))]

    def train(call: Callable[[float], None]) -> None:
        trainer.hooks = [AfterStep(call)]
        trainer.run()

    def separate_loss() -> float:
        first = [row for window in windows[: work.shape.rows(work.packed)] for row in window]
        single = ConversationBatches(rows, seq_len=None, order="sequential")
        parts = [single.batch(row, 1) for row in first]
        with torch.no_grad(), trainer.precision.autocast():
            losses = [trainer.objective(trainer.model, part) for part in parts]
        return sum(float(loss.total) for loss in losses) / sum(int(loss.count) for loss in losses)

    offsets, ids, scored = rows.tokens.offsets, rows.tokens.ids, rows.scored
    spans = [slice(first, last) for first, last in itertools.pairwise(offsets)]
    return Side(
        model=trainer.model,
        tokens=[sum(lengths[row] for row in window) for window in windows],
        digest=digest_of((ids[span], scored[span]) for span in spans),
        train=train,
        separate_loss=separate_loss,
    )


def _recipe(work: Work) -> Path:
    """Write the recipe of a run beside its data, and return its path."""
    shape = work.shape
    lora = f"[lora]\nrank = {RANK}\nalpha = {ALPHA}\n" if work.lora else ""
    text = f"""
start_from = "{work.base}"

[data]
train = "{work.data}"
packing = {str(work.packed).lower()}
validation_fraction = 0.0

{lora}
[train]
objective = "instruction"
steps = {STEPS}
seq_len = {shape.longest}
batch_size = {shape.rows(work.packed)}
precision = "{work.precision}"
learning_rate = {LEARNING_RATE}
beta1 = {BETAS[0]}
beta2 = {BETAS[1]}
epsilon = {EPSILON}
weight_decay = 0.0
clip = {CLIP}
schedule = "constant"
warmup_steps = 0
compile = "off"
threads = {work.threads}
"""
    path = work.data.parent / f"recipe-{os.getpid()}.toml"
    path.write_text(text, encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------- trl


def trl_side(work: Work) -> Side:
    """Return SFTTrainer with ``assistant_only_loss``, and peft's LoRA of all linear layers of the blocks."""
    import datasets
    import peft
    import transformers
    import trl

    datasets.disable_progress_bars()
    losses: list[Any] = []

    class Recording(trl.SFTTrainer):  # type: ignore[misc]
        """SFTTrainer; it keeps the loss of a step, which the loop only logs."""

        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            losses.append(loss)
            return loss

    class AfterStep(transformers.TrainerCallback):
        def __init__(self, call: Callable[[float], None]) -> None:
            self.call = call

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            self.call(float(losses.pop()))

    tokenizer = transformers.AutoTokenizer.from_pretrained(work.base)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        work.base, dtype=torch.float32, attn_implementation="sdpa"
    )
    adapter = peft.LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none",
        target_modules="all-linear",
    )  # fmt: skip
    trainer: Any = Recording(
        model=model,
        args=sft_settings(work),
        train_dataset=datasets.load_dataset(
            "json", data_files=str(work.data), split="train", cache_dir=str(work.data.parent / "datasets")
        ),
        processing_class=tokenizer,
        peft_config=adapter if work.lora else None,
    )
    columns = trainer.train_dataset[:]
    ids, labels = columns["input_ids"], columns["labels"]

    def train(call: Callable[[float], None]) -> None:
        trainer.add_callback(AfterStep(call))
        trainer.train()

    def separate_loss() -> float:
        total, count = 0.0, 0
        for row in range(work.shape.rows(work.packed)):
            at = 0
            for length in columns["seq_lengths"][row] if work.packed else [len(ids[row])]:
                here = slice(at, at + length)
                at += length
                tokens, targets = torch.tensor([ids[row][here]]), torch.tensor([labels[row][here]])
                targets[0, 0] = -100
                scored = int((targets != -100).sum())
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, work.precision == "bf16"):
                    logits = trainer.model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
                total += float(torch.nn.functional.cross_entropy(logits, targets[0, 1:], reduction="sum"))
                count += scored
        return total / count

    scored = ([label != -100 for label in row] for row in labels)
    return Side(
        model=trainer.model,
        tokens=[len(row) for row in ids],
        digest=None if work.packed else digest_of(zip(ids, scored, strict=True)),
        train=train,
        separate_loss=separate_loss,
    )


def sft_settings(work: Work) -> Any:
    """Return the settings that make SFTTrainer do Wordloom's work: its loop with nothing but training.

    Gradient checkpointing, which trl turns on by default, is off on both sides.
    """
    import trl

    return trl.SFTConfig(
        output_dir=str(work.data.parent / f"trl-{os.getpid()}"),
        use_cpu=True,
        bf16=work.precision == "bf16",
        per_device_train_batch_size=work.shape.rows(work.packed),
        max_steps=STEPS,
        max_length=work.shape.longest,
        packing=work.packed,
        assistant_only_loss=True,
        train_sampling_strategy="sequential",
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        optim="adamw_torch_fused",
        learning_rate=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=EPSILON,
        weight_decay=0.0,
        max_grad_norm=CLIP,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


SIDES = {"wordloom": wordloom_side, "trl": trl_side}
