"""The table ``[train]`` of a recipe: objective, budget, batch, optimizer, schedule, precision and logging."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from wordloom.errors import did_you_mean
from wordloom.recipe.reading import BUDGETS, MAX_THREADS
from wordloom.recipe.table import OnlyIf, Table

Objective = Literal[
    "causal_lm",
    "truncated_bptt",
    "classification",
    "regression",
    "multiple_choice",
    "token_classification",
    "question_answering",
    "translation",
    "instruction",
    "preference",
    "masked_lm",
    "masked_lm+next_sentence",
    "contrastive",
    "cosine_similarity",
]

#: Objectives of fine-tuning heads and of sentence embeddings; all others are those of language models.
HEADS = (
    *("classification", "regression", "multiple_choice", "token_classification", "question_answering"),
    *("contrastive", "cosine_similarity"),
)
MASKED = ("masked_lm", "masked_lm+next_sentence")
_NEXT_TOKEN = ("causal_lm", "truncated_bptt")
_WRITES = (*_NEXT_TOKEN, "instruction")
#: Objectives to which the language-model loss of the task's own texts can be added.
WITH_LANGUAGE_MODEL = ("classification", "regression", "multiple_choice")

#: Validation metrics for which lower values are better, and those for which higher values are.
LOWER = (
    "loss",
    "perplexity",
    "bits_per_byte",
    "masked_loss",
    "masked_perplexity",
    "next_sentence_loss",
    "answer_loss",
)
HIGHER = (
    *("accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "exact_match", "bleu", "chrf"),
    *("masked_accuracy", "next_sentence_accuracy", "reward_accuracy", "reward_margin"),
)

# Conditions that several fields share.
_NotTranslation = OnlyIf(
    "train.objective",
    excluded=("translation",),
    instead="the length of pairs is limited by data.max_source_tokens and data.max_target_tokens, and their "
    "number by train.batch_tokens",
)
_Translation = OnlyIf("train.objective", ("translation",))
_Contrastive = OnlyIf("train.objective", ("contrastive",))
_StepByStep = OnlyIf("optimizer", ("adamw", "muon", "sgd"))
_Adam = OnlyIf("optimizer", ("adamw", "muon"))
_Muon = OnlyIf("optimizer", ("muon",))
_LBFGS = OnlyIf("optimizer", ("lbfgs",))
NotBagOfWords = OnlyIf("model.family", excluded=("bag_of_words",))
FineTuned = OnlyIf("model.family", excluded=("bag_of_words", "rnn_classifier"))
_Attention = OnlyIf("model.family", excluded=("bag_of_words", "rnn", "rnn_classifier", "cbow"))
_EpochDecay = OnlyIf("schedule", ("epoch_decay",))


class TrainSettings(Table):
    """The settings of the training loop."""

    objective: Objective = "causal_lm"
    """Training objective; it decides which keys [data] has. truncated_bptt is causal_lm with
    windows that continue each other, whose recurrent state is carried over."""

    # the budget
    steps: int | None = Field(None, ge=1)
    """Budget in optimizer steps. Give exactly one budget."""
    tokens: int | None = Field(None, ge=1)
    """Budget in training tokens."""
    epochs: float | None = Field(None, gt=0)
    """Budget in passes over the training data."""
    flops: float | None = Field(None, gt=0)
    """Budget in floating-point operations."""
    minutes: float | None = Field(None, gt=0)
    """Budget in minutes, converted to steps by a few timed steps at the start."""

    # the batch
    seq_len: Annotated[int, _NotTranslation, NotBagOfWords] = Field(256, ge=1)
    """Length of a window or row in tokens."""
    batch_size: Annotated[int, _StepByStep] = Field(32, ge=1)
    """Windows or rows per optimizer step, over all micro-batches. Translation counts batches of
    train.batch_tokens."""
    micro_batch_size: Annotated[int | None, _NotTranslation] = Field(None, ge=1)
    """Windows or rows per forward pass. By default the whole batch."""
    shard: Annotated[Literal["none", "full", "hybrid"], _StepByStep] = "none"
    """The weights on each rank of torchrun: all (none), a part of each, with the other parts on all other
    ranks (full), or with the other parts on the ranks of its machine (hybrid)."""
    consolidate: Annotated[bool, _StepByStep] = False
    """Gather each checkpoint of several ranks on the first rank and write an ordinary model folder; training
    waits. By default, each rank writes its part while training goes on, and only the finished model is
    gathered."""
    batch_tokens: Annotated[int, _Translation] = Field(4096, ge=1)
    """Target tokens of one batch of pairs; train.batch_size counts these batches."""
    label_smoothing: Annotated[float, _Translation] = Field(0.0, ge=0, lt=1)
    """Share of the target probability that is spread over the vocabulary."""
    cross_attention: Annotated[Literal["fresh", "copied"], _Translation] = "fresh"
    """Cross-attention of a translation model that starts from a BERT: initialised at random (fresh), or
    copied from the self-attention (copied)."""
    language_model_weight: Annotated[float, FineTuned] = Field(0.0, ge=0, le=1)
    """Weight of a language-model loss that is added to the objective's loss (Radford et al. 2018)."""
    language_model_texts: Annotated[Literal["task", "old"], OnlyIf("language_model_weight")] = "task"
    """Text of that language-model loss: the task's own (task; classification, regression and multiple_choice
    by a causal model), or that of [old_task] (old)."""
    beta: Annotated[float, OnlyIf("train.objective", ("preference",))] = Field(0.1, gt=0, le=100)
    """Strength by which preference tuning keeps the model near its start (Rafailov et al. 2023). At most
    100."""
    rehearsal_share: float | None = Field(None, gt=0, lt=1)
    """Share of the steps that train on the text of [old_task]."""
    similarity_scale: Annotated[float, _Contrastive] = Field(20.0, gt=0, le=10_000)
    """Factor that turns cosines into logits (1 / temperature), at most 10,000. The other texts of the batch
    are the negatives."""
    symmetric: Annotated[bool, _Contrastive] = False
    """Also find the first text of a pair from the second."""
    long_seq_len: Annotated[int | None, OnlyIf("train.objective", MASKED)] = Field(None, ge=1)
    """Row length in the last steps (Devlin et al. 2018, appendix A.2)."""
    long_share: Annotated[float, OnlyIf("train.objective", MASKED), OnlyIf("long_seq_len")] = Field(
        0.1, gt=0, lt=1
    )
    """Share of the steps, at the end, with rows of train.long_seq_len."""

    # the optimizer
    optimizer: Literal["adamw", "muon", "sgd", "lbfgs"] = "adamw"
    """The optimizer. muon trains the matrices of the blocks, and AdamW the other parameters. lbfgs reads all
    rows at every step."""
    learning_rate: Annotated[float, _StepByStep] = Field(1e-3, gt=0)
    """Peak learning rate, of all that Muon does not train."""
    muon_learning_rate: Annotated[float, _Muon] = Field(0.02, gt=0)
    """Peak learning rate of the matrices that Muon trains."""
    muon_momentum: Annotated[float, _Muon] = Field(0.95, ge=0, lt=1)
    """Momentum of Muon."""
    momentum: Annotated[float, OnlyIf("optimizer", ("sgd",))] = Field(0.0, ge=0, lt=1)
    """Momentum of SGD."""
    beta1: Annotated[float, _Adam] = Field(0.9, ge=0, lt=1)
    """AdamW's decay of the mean of gradients."""
    beta2: Annotated[float, _Adam] = Field(0.95, ge=0, lt=1)
    """AdamW's decay of the mean of squared gradients."""
    epsilon: Annotated[float, _Adam] = Field(1e-8, gt=0)
    """Number that AdamW adds to the denominator."""
    weight_decay: Annotated[float, _StepByStep] = Field(0.1, ge=0, le=1000)
    """Decoupled weight decay, on matrices only. At most 1,000."""
    l2: Annotated[float, _LBFGS] = Field(1e-4, ge=0, le=1e6)
    """L-BFGS adds l2 / 2 times the sum of squares of all matrices to the mean loss. At most 1,000,000."""
    tolerance: Annotated[float, _LBFGS] = Field(1e-4, ge=0)
    """L-BFGS stops when no component of the gradient is larger."""
    clip: Annotated[float | None, _StepByStep] = Field(1.0, gt=0)
    """Largest norm of the gradient of all parameters together."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights. The average is evaluated and saved."""

    # the schedule
    schedule: Annotated[
        Literal["constant", "linear", "cosine", "warmup_stable_decay", "inverse_sqrt", "epoch_decay"],
        _StepByStep,
    ] = "cosine"
    """How the learning rate changes from step to step."""
    warmup_steps: Annotated[int, _StepByStep] = Field(0, ge=0)
    """Steps in which the learning rate rises linearly to its peak."""
    decay_share: Annotated[float, OnlyIf("schedule", ("warmup_stable_decay",))] = Field(0.2, gt=0, le=1)
    """Share of the steps, at the end, in which the learning rate decays."""
    flat_epochs: Annotated[int, _EpochDecay] = Field(4, ge=0)
    """Epochs at the peak learning rate, before the decay begins."""
    decay_factor: Annotated[float, _EpochDecay] = Field(0.5, gt=0, lt=1)
    """Factor of the learning rate at the start of each later epoch."""
    final_share: Annotated[float, OnlyIf("schedule", ("linear", "cosine", "warmup_stable_decay"))] = Field(
        0.1, ge=0, le=1
    )
    """Learning rate of the last step, as a share of the peak."""

    # device, precision and kernels
    device: str = "auto"
    """Device: auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["auto", "fp32", "bf16", "bf16-pure", "bf16-head"] = "auto"
    """Arithmetic: fp32; bf16 with fp32 weights; bf16 weights too (bf16-pure); or bf16 in the language-model
    head alone (bf16-head). auto takes what is fast on the device."""
    compile: Annotated[Literal["auto", "on", "off"], FineTuned] = "auto"
    """Use of torch.compile."""
    attention_backend: Annotated[Literal["auto", "flash", "efficient", "math", "exact"], _Attention] = "auto"
    """Implementation of attention."""
    gradient_checkpointing: Annotated[bool, FineTuned] = False
    """Recompute activations in the backward pass, which saves memory and costs time."""
    threads: int | None = Field(None, ge=1, le=MAX_THREADS)
    """CPU threads. By default PyTorch's own number."""
    allocator: Literal["tuned", "system"] = "tuned"
    """CPU memory allocator settings: tuned to keep large blocks, or the system's own."""

    # what happens along the way; 0 means never
    log_every: int = Field(10, ge=1)
    """Steps between two lines of metrics.jsonl."""
    evaluate_every: int = Field(0, ge=0)
    """Steps between two evaluations; 0: at the end only."""
    evaluate_windows: Annotated[int | None, OnlyIf("train.objective", (*_NEXT_TOKEN, *MASKED))] = Field(
        None, ge=1
    )
    """Windows per evaluation. By default the whole validation part."""
    sample_every: Annotated[int, OnlyIf("train.objective", _WRITES)] = Field(0, ge=0)
    """Steps between two texts generated for the log; 0: never."""
    sample_prompt: Annotated[str, OnlyIf("sample_every")] = "\n"
    """Text that these samples begin with; in instruction tuning the question that they answer, by default the
    first of the validation part."""
    sample_tokens: Annotated[int, OnlyIf("sample_every")] = Field(64, ge=1)
    """Tokens of each sample."""
    inspect: Annotated[list[str], OnlyIf("train.objective", _WRITES)] = Field(default_factory=list)
    """Views to write at every evaluation, as pictures and JSON in the folder views of the run: lens:FILE,
    attention:FILE or contributions:FILE for the text in FILE, heads, geometry."""
    save_every: int = Field(0, ge=0)
    """Steps between two checkpoints; 0: at the end only."""
    keep_last: int = Field(2, ge=1)
    """Number of checkpoints to keep."""
    keep_best: bool = False
    """Keep the checkpoint with the best validation metric, and finish with its weights."""
    best_metric: Annotated[str, OnlyIf("keep_best")] = "loss"
    """Validation metric that train.keep_best compares."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) != 1:
            named = " and ".join(f"train.{name}" for name in budgets) or "none"
            raise ValueError(f"give exactly one budget of train.{', train.'.join(BUDGETS)}; given: {named}")
        if self.optimizer == "lbfgs":
            self._check_lbfgs()
        elif self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"train.micro_batch_size {self.micro_batch_size} is above train.batch_size {self.batch_size}"
            )
        if self.precision == "bf16-head" and self.objective in HEADS:
            raise ValueError(
                'train.precision "bf16-head" is for the head of a language model; take fp32 or bf16'
            )
        if self.schedule == "epoch_decay" and self.epochs is None:
            raise ValueError('train.schedule "epoch_decay" counts epochs: give the budget as train.epochs')
        if self.objective == "translation" and "batch_size" not in self.model_fields_set:
            raise ValueError(
                "train.batch_size counts the batches of train.batch_tokens target tokens in one step of "
                "translation: give it, such as 1"
            )
        if self.objective == "contrastive":
            self._check_contrast()
        self._check_long_rows()
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
                "train.batch_size 1 leaves no other text in the batch as a negative; take 2 or more"
            )
        if self.micro_batch_size is not None:
            raise ValueError(
                "train.micro_batch_size would limit the negatives of a text to its micro-batch; leave it out "
                "(train.gradient_checkpointing = true saves memory)"
            )

    def _check_lbfgs(self) -> None:
        if self.objective != "classification":
            raise ValueError(
                'train.optimizer "lbfgs" reads all samples at every step, which only '
                'train.objective = "classification" does; use adamw or muon'
            )
        if self.ema is not None:
            raise ValueError(
                "train.ema averages noisy steps, and the steps of lbfgs have no noise; leave it out"
            )
        if self.keep_best:
            raise ValueError("train.keep_best has no use with lbfgs, whose loss only falls; leave it out")
        if self.precision not in ("auto", "fp32"):
            raise ValueError(f'train.optimizer "lbfgs" needs fp32, not train.precision "{self.precision}"')

    def _check_long_rows(self) -> None:
        if self.long_seq_len is None:
            return
        if self.long_seq_len <= self.seq_len:
            raise ValueError(
                f"train.long_seq_len {self.long_seq_len} is not above train.seq_len {self.seq_len}"
            )
        if self.steps is None and self.epochs is None:
            raise ValueError(
                "train.long_seq_len needs a budget in train.steps or train.epochs, because train.long_share "
                "is a share of the steps"
            )
