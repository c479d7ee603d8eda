"""The table ``[train]`` of a recipe: the loop's settings, and which of them have an effect together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from wordloom.errors import did_you_mean
from wordloom.recipe.reading import BUDGETS, MAX_THREADS, Strict

__all__ = ["HEADS", "HIGHER", "LOWER", "TrainSettings", "without_effect"]

#: Objectives of a head that answers, and of vectors of texts; all others are those of language models.
HEADS = (
    *("classification", "regression", "multiple_choice", "token_classification", "question_answering"),
    *("contrastive", "cosine_similarity"),
)

#: Figures of a validation part of which the lower is the better, and the higher.
LOWER = ("loss", "perplexity", "bits_per_byte", "masked_loss", "masked_perplexity", "next_sentence_loss")
HIGHER = (
    *("accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "exact_match", "bleu", "chrf"),
    *("masked_accuracy", "next_sentence_accuracy"),
)


class TrainSettings(Strict):
    """The loop: budget, batch, optimizer, schedule, precision, and what happens along the way."""

    # budget: exactly one
    steps: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0)
    flops: float | None = Field(None, gt=0)
    minutes: float | None = Field(None, gt=0)

    # batch
    seq_len: int = Field(256, ge=1)
    batch_size: int = Field(32, ge=1)  # windows per optimizer step, over all micro-batches and ranks
    micro_batch_size: int | None = Field(None, ge=1)  # windows per forward pass; None: all at once
    # truncated_bptt: windows go on where those before ended, as the state of recurrent models does
    objective: Literal[
        "causal_lm",
        "truncated_bptt",
        "classification",
        "regression",
        "multiple_choice",
        "token_classification",
        "question_answering",
        "translation",
        "masked_lm",
        "masked_lm+next_sentence",
        "contrastive",
        "cosine_similarity",
    ] = "causal_lm"
    batch_tokens: int = Field(4096, ge=1)  # translation: target tokens of a batch, of which batch_size counts
    label_smoothing: float = Field(0.0, ge=0, lt=1)  # translation: share of the target given to all words
    cross_attention: Literal["fresh", "copied"] = (
        "fresh"  # translation begun with a BERT: as its own attention
    )
    # so much of a language model's loss is added: of the next tokens of the task's own texts (classification,
    # regression and multiple_choice by a causal model), or of old ones, those of [old_task]
    language_model_weight: float = Field(0.0, ge=0, le=1)
    language_model_texts: Literal["task", "old"] = "task"
    rehearsal_share: float | None = Field(None, gt=0, lt=1)  # of the steps, which go on with [old_task]
    # contrastive: cosines times this (1 / temperature) are the logits; a text is told apart from the others
    # of its batch, so that train.batch_size says how many they are; symmetric: the first by the second, too
    similarity_scale: float = Field(20.0, gt=0)
    symmetric: bool = False
    # masked_lm: rows of this length in the last share of the steps (Devlin et al. 2018, appendix A.2)
    long_seq_len: int | None = Field(None, ge=1)
    long_share: float = Field(0.1, gt=0, lt=1)

    # optimizer
    optimizer: Literal["adamw", "muon", "sgd", "lbfgs"] = "adamw"  # lbfgs: all rows at every step
    learning_rate: float = Field(1e-3, gt=0)
    muon_learning_rate: float = Field(0.02, gt=0)  # of the blocks' matrices under "muon"; the rest use AdamW
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    momentum: float = Field(0.0, ge=0, lt=1)  # of sgd
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)  # on matrices only
    l2: float = Field(1e-4, ge=0)  # lbfgs: l2 / 2 times the squares of matrices, beside the mean loss
    tolerance: float = Field(1e-4, ge=0)  # lbfgs ends where no component of the gradient is above it
    clip: float | None = Field(1.0, gt=0)  # norm of all gradients
    ema: float | None = Field(
        None, gt=0, lt=1
    )  # decay of an average of the weights, which is then what is saved

    # schedule: a share of the peak learning rate at every step
    schedule: Literal[
        "constant", "linear", "cosine", "warmup_stable_decay", "inverse_sqrt", "epoch_decay"
    ] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    decay_share: float = Field(0.2, gt=0, le=1)  # of all steps, at the end of warmup_stable_decay
    flat_epochs: int = Field(4, ge=0)  # of epoch_decay: so many at the peak, then times decay_factor each
    decay_factor: float = Field(0.5, gt=0, lt=1)
    final_share: float = Field(0.1, ge=0, le=1)  # of the peak, where linear, cosine and stable-decay end

    # precision and kernels
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    precision: Literal["auto", "fp32", "bf16", "bf16-pure", "bf16-head"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    attention_backend: Literal["auto", "flash", "efficient", "math", "exact"] = "auto"
    gradient_checkpointing: bool = False
    threads: int | None = Field(None, ge=1, le=MAX_THREADS)
    allocator: Literal["tuned", "system"] = "tuned"

    # along the way; 0: never
    log_every: int = Field(10, ge=1)
    evaluate_every: int = Field(0, ge=0)
    evaluate_windows: int | None = Field(None, ge=1)  # None: the whole validation text
    sample_every: int = Field(0, ge=0)
    sample_prompt: str = "\n"
    sample_tokens: int = Field(64, ge=1)
    save_every: int = Field(0, ge=0)
    keep_last: int = Field(2, ge=1)
    keep_best: bool = False  # also keep the best checkpoint on the validation part, and finish with it
    best_metric: str = "loss"  # the figure by which it is the best, one of LOWER or HIGHER
    tensorboard: bool = False

    @model_validator(mode="after")
    def _one_budget(self) -> TrainSettings:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            named = " and ".join(f"train.{name}" for name in given) or "none"
            raise ValueError(f"give exactly one budget of train.{', train.'.join(BUDGETS)}; given: {named}")
        settled = self.optimizer == "lbfgs"  # the batch is then all rows
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size and not settled:
            raise ValueError(
                f"train.micro_batch_size {self.micro_batch_size} is above train.batch_size {self.batch_size}"
            )
        if self.optimizer == "lbfgs":
            self._check_lbfgs()
        if self.precision == "bf16-head" and self.objective in HEADS:
            raise ValueError(
                'train.precision "bf16-head" is for the head of a language model; take fp32 or bf16'
            )
        if self.schedule == "epoch_decay" and self.epochs is None:
            raise ValueError('train.schedule "epoch_decay" counts epochs: give the budget as train.epochs')
        if self.objective == "translation" and "batch_size" not in self.model_fields_set:
            raise ValueError(
                "train.batch_size counts batches of train.batch_tokens target tokens that make a step of "
                "translation: give it, such as 1"
            )
        if self.objective == "contrastive":
            self._check_contrast()
        if self.long_seq_len is not None:
            if self.long_seq_len <= self.seq_len:
                raise ValueError(
                    f"train.long_seq_len {self.long_seq_len} is not above train.seq_len {self.seq_len}"
                )
            if self.steps is None and self.epochs is None:
                raise ValueError(
                    "train.long_seq_len needs a budget in train.steps or train.epochs, of which "
                    "train.long_share is"
                )
        if self.keep_best and not self.evaluate_every:
            raise ValueError("train.keep_best needs train.evaluate_every above 0")
        if self.best_metric not in (*LOWER, *HIGHER):
            raise ValueError(
                f"unknown train.best_metric {self.best_metric!r}; "
                f"{did_you_mean(self.best_metric, (*LOWER, *HIGHER))}"
            )
        return self

    def _check_contrast(self) -> None:
        if self.batch_size < 2:
            raise ValueError(
                "train.batch_size 1 leaves no other text in the batch to tell a text's own from; take 2 or "
                "more, such as 32"
            )
        if self.micro_batch_size is not None:
            raise ValueError(
                "train.micro_batch_size would leave each text only the others of its micro-batch to be told "
                "from; leave it out (train.gradient_checkpointing = true saves memory)"
            )

    def _check_lbfgs(self) -> None:
        if self.objective != "classification":
            raise ValueError(
                'train.optimizer "lbfgs" goes through all samples at every step, which only '
                'train.objective = "classification" does; use adamw or muon'
            )
        if self.ema is not None:
            raise ValueError("train.ema averages noisy steps, and those of lbfgs are none; leave it out")
        if self.keep_best:
            raise ValueError("train.keep_best has no use with lbfgs, whose loss only falls; leave it out")
        if self.precision not in ("auto", "fp32"):
            raise ValueError(f'train.optimizer "lbfgs" needs fp32, not train.precision "{self.precision}"')


# What a setting needs to have any effect, where that is another setting's value.
_ONLY_WITH = {
    "muon_learning_rate": ("optimizer", ("muon",)),
    "muon_momentum": ("optimizer", ("muon",)),
    **dict.fromkeys(
        (
            "batch_size",
            "learning_rate",
            "weight_decay",
            "clip",
            "schedule",
            "warmup_steps",
        ),
        ("optimizer", ("adamw", "muon", "sgd")),
    ),
    **dict.fromkeys(("beta1", "beta2", "epsilon"), ("optimizer", ("adamw", "muon"))),
    "momentum": ("optimizer", ("sgd",)),
    "l2": ("optimizer", ("lbfgs",)),
    "tolerance": ("optimizer", ("lbfgs",)),
    "decay_share": ("schedule", ("warmup_stable_decay",)),
    "flat_epochs": ("schedule", ("epoch_decay",)),
    "decay_factor": ("schedule", ("epoch_decay",)),
    "final_share": ("schedule", ("linear", "cosine", "warmup_stable_decay")),
    "sample_prompt": ("sample_every", None),
    "sample_tokens": ("sample_every", None),
    "long_share": ("long_seq_len", None),
    "language_model_texts": ("language_model_weight", None),
    "best_metric": ("keep_best", (True,)),
}


def without_effect(train: TrainSettings) -> list[str]:
    """A line for every setting that was changed from its default and that another one leaves unused."""
    lines = []
    for name, (other, values) in _ONLY_WITH.items():
        has = getattr(train, other)
        used = bool(has) if values is None else has in values
        if not used and getattr(train, name) != TrainSettings.model_fields[name].default:
            needs = "one above 0" if values is None else " or ".join(map(repr, values))
            lines.append(f"train.{name} has no effect with train.{other} {has!r}: it takes {needs}")
    return lines
