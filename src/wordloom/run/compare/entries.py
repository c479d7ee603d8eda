"""The entries of a comparison: families of models, sized to equal numbers of parameters.

All models of one size embed tokens in as many dimensions and tie the output to the embedding, and
``hidden_dim`` makes the parameters of their layers equal.  Their numbers of parameters therefore agree with
and without embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import ConfigError, RecipeError, did_you_mean
from wordloom.models import config_from, encodes, skeleton
from wordloom.models.building.cost import flops_per_token
from wordloom.recipe import Recipe
from wordloom.recipe.reading import read_recipe
from wordloom.run.tasks.building import check_length, model_settings

NGRAM = "ngram"


class Family(NamedTuple):
    """A family of a comparison.

    Attributes:
        title: the name in tables.
        family: the name in :data:`wordloom.models.MODELS`.
        objective: the objective of training.
        rates: the peak learning rates of AdamW to try, in ascending order.
        settings: settings of the model.
        attends: whether the model has heads, and as many layers as the reference model.
    """

    title: str
    family: str
    objective: str
    rates: tuple[float, ...]
    settings: dict[str, Any]
    attends: bool = False


_RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
_HIGHER = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
_LAYERS = 2  # of models that do not attend
_MOST_LAYERS = 4  # of models that attend, where that of the recipe does not
_LAYERS_BY_SIZE = ((2e5, 2), (4e6, 4), (3e7, 6), (4e8, 12))  # most parameters, and layers

FAMILIES: dict[str, Family] = {
    "bag": Family("bag of words (order-free)", "cbow", "causal_lm", _HIGHER, {"n_layers": _LAYERS}),
    "rnn": Family("tanh RNN", "rnn", "truncated_bptt", _RATES, {"cell": "rnn_tanh", "n_layers": _LAYERS}),
    "lstm": Family("LSTM", "rnn", "truncated_bptt", _HIGHER, {"cell": "lstm", "n_layers": _LAYERS}),
    "gru": Family("GRU", "rnn", "truncated_bptt", _HIGHER, {"cell": "gru", "n_layers": _LAYERS}),
    "gpt2": Family("GPT-2", "gpt2", "causal_lm", _RATES, {}, attends=True),
    "llama": Family("LLaMA", "llama", "causal_lm", _RATES, {}, attends=True),
    "llama-band": Family("LLaMA with a band", "llama", "causal_lm", _RATES, {}, attends=True),
    "bert": Family("BERT", "bert", "masked_lm", _RATES, {"dropout": 0.0}, attends=True),
}
#: The families that a comparison takes by default; it charts encoders apart.
DEFAULT = (NGRAM, "bag", "rnn", "lstm", "gru", "gpt2", "llama", "llama-band")

# Settings of [train] that all entries take from the recipe of a comparison, but own recipes have an optimizer
# of their own.
_OPTIMIZER = ("beta1", "beta2", "epsilon", "weight_decay", "clip", "final_share")
SHARED = (
    *("seq_len", "batch_size", "micro_batch_size", "evaluate_windows", "log_every"),
    *_OPTIMIZER,
    *("device", "precision", "compile", "threads", "allocator"),
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model of a comparison.

    Attributes:
        name: its name in files, such as ``lstm`` or ``lstm-2M``.
        title: its name in tables.
        recipe: its recipe; the learning rate, the steps and the seed are those of a run.
        rates: the peak learning rates to try, in ascending order.
        parameters: all parameters.
        weights: the parameters that are no embeddings.
        flops_per_token: operations of training.
        encodes: whether it is an encoder, which has no bits per byte.
        aimed_at: the parameters without embeddings that hidden_dim was chosen for; None for an own recipe.
    """

    name: str
    title: str
    recipe: Recipe
    rates: tuple[float, ...]
    parameters: int
    weights: int
    flops_per_token: int
    encodes: bool
    aimed_at: int | None = None

    @property
    def tokens_per_step(self) -> int:
        s = self.recipe.train
        return s.batch_size * s.seq_len


class Shape(NamedTuple):
    """The shape that all entries of one size share; ``weights`` counts the parameters beside embeddings."""

    dim: int
    n_layers: int
    n_heads: int
    weights: int


def shape_for(parameters: float, vocab_size: int) -> Shape:
    """Return the shape of a Transformer of about ``parameters`` parameters, with embeddings.

    Raises RecipeError if the vocabulary leaves no room for layers.
    """
    n_layers = next((layers for most, layers in _LAYERS_BY_SIZE if parameters < most), 24)
    head_dim = 16 if parameters < 2e5 else 32 if parameters < 3e7 else 64
    n_heads = 1
    while _usual_size(vocab_size, n_layers, head_dim * (n_heads + 1)) <= parameters:
        n_heads += 1
    dim = head_dim * n_heads
    weights = round(parameters - vocab_size * dim)
    if weights < 8 * n_layers * dim * dim:
        raise RecipeError(
            f"{parameters:,.0f} parameters leave no room for layers beside the embeddings of {vocab_size:,} "
            "tokens; give more with --parameters, or a smaller vocabulary (tokenizer.vocab_size=NUMBER)"
        )
    return Shape(dim, n_layers, n_heads, weights)


def _usual_size(vocab_size: int, n_layers: int, dim: int) -> int:
    """Return the parameters of a Transformer whose feed-forward layers are four times as wide as itself."""
    return vocab_size * dim + 12 * n_layers * dim * dim


def shape_of(recipe: Recipe, vocab_size: int) -> Shape:
    """Return the shape of the model of ``recipe``."""
    family, settings = model_settings(recipe)
    config = config_from(family, **{**settings, "vocab_size": vocab_size})
    heads = getattr(config, "n_heads", None)
    _, weights = count_parameters(config)
    if heads:
        return Shape(config.dim, config.n_layers, heads, weights)
    layers = min(_MOST_LAYERS, max(1, weights // (8 * config.dim**2)))  # with room for feed-forward layers
    return Shape(config.dim, layers, _heads_for(config.dim), weights)


def _heads_for(dim: int) -> int:
    """Return a number of heads of about 32 dimensions, an even number where ``dim`` is even.

    Rotary positions turn pairs of dimensions.
    """
    fitting = (n for n in range(max(1, dim // 32), 0, -1) if dim % n == 0 and dim // n % 2 == 0)
    return next(fitting, 1)


def count_parameters(config: Any) -> tuple[int, int]:
    """Return the number of all parameters of a model of ``config``, and of those that are no embeddings.

    The matrix of the output counts as an embedding, also where it is not tied to that of the input.
    """
    model, endings = skeleton(config), ("_embedding.weight", "lm_head.weight")
    embeddings = sum(p.numel() for name, p in model.named_parameters() if name.endswith(endings))
    everything = sum(p.numel() for p in model.parameters())
    return everything, everything - embeddings


def sized(family: Family, shape: Shape, vocab_size: int, seq_len: int) -> dict[str, Any]:
    """Return settings of ``family`` with the parameters of ``shape``, as nearly as its hidden_dim allows.

    Raises RecipeError if the layers have more parameters with the smallest hidden_dim.
    """
    settings: dict[str, Any] = {"dim": shape.dim, "tie_embeddings": True, **family.settings}
    if family.attends:
        settings |= {"n_layers": shape.n_layers, "n_heads": shape.n_heads, "max_seq_len": seq_len}
    if family.family == "rnn":
        settings["output_bias"] = False
    if family is FAMILIES["llama-band"]:
        settings["attention"] = f"band:{max(1, seq_len // 4)}"

    def weights(hidden_dim: int) -> int:
        config = entry_config(family.family, {**settings, "hidden_dim": hidden_dim}, vocab_size)
        return count_parameters(config)[1]

    low, high = 1, 2
    if weights(low) > shape.weights:
        raise RecipeError(
            f"a {family.title} of {shape.dim} dimensions has more than {shape.weights:,} parameters beside "
            "its embeddings; give more with --parameters, or leave it out with --families"
        )
    while weights(high) <= shape.weights:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if weights(middle) <= shape.weights else (low, middle)
    nearest = min((low, high), key=lambda hidden_dim: abs(weights(hidden_dim) - shape.weights))
    # kernels compute multiples of 8 and 4 faster
    step = next((step for step in (8, 4, 2) if nearest >= 64 * step), 1)
    return {**settings, "hidden_dim": round(nearest / step) * step}


def entry_config(family: str, settings: dict[str, Any], vocab_size: int) -> Any:
    """Return the config of an entry's model; an encoder has the head of masked language models."""
    heads = {"masked_lm_head": True, "pooler": False} if family in ("bert", "roberta") else {}
    return config_from(family, **{**settings, **heads, "vocab_size": vocab_size})


def check_families(names: Sequence[str]) -> None:
    """Raise RecipeError for an unknown family, and for one that is named twice."""
    known = (NGRAM, *FAMILIES)
    for name in names:
        if name not in known:
            raise RecipeError(f"--families: no family {name!r} to compare; {did_you_mean(name, known)}")
        if names.count(name) > 1:
            raise RecipeError(f"--families names {name!r} twice; name it once")


def family_entry(name: str, base: Recipe, shape: Shape, vocab_size: int, suffix: str = "") -> Entry:
    """Return the entry of the family ``name`` in ``shape``; ``suffix`` says its size."""
    family = FAMILIES[name]
    settings = sized(family, shape, vocab_size, base.train.seq_len)
    recipe = _recipe(
        base,
        name + suffix,
        {"family": family.family, **settings},
        {"optimizer": "adamw", "objective": family.objective},
        shared=SHARED,
    )
    title = family.title if not suffix else f"{family.title}, {suffix.removeprefix('-')}"
    return replace(_entry(recipe, title, family.rates, vocab_size), aimed_at=shape.weights)


def own_entry(path: str | Path, own: Recipe, base: Recipe, vocab_size: int) -> Entry:
    """Return the entry of the user's recipe ``own``, with the text, tokenizer and batches of the comparison.

    Its context is that of the comparison, too, because a model is scored in windows of its context.  The
    learning rates to try are its own and those two and four times lower and higher.  ``path`` names the
    recipe in errors.

    Raises RecipeError for a recipe that trains no language model from scratch.
    """
    if own.start_from is not None or own.lora is not None:
        raise RecipeError(f"{path}: a comparison trains models from scratch; leave out start_from and [lora]")
    if getattr(own.data, "label_prefix", False):
        raise RecipeError(f"{path}: a comparison trains on running text; leave out data.label_prefix")
    s = own.train
    if s.objective not in ("causal_lm", "truncated_bptt", "masked_lm"):
        raise RecipeError(
            f"{path}: train.objective {s.objective!r} trains no language model; a comparison takes "
            "causal_lm, truncated_bptt and masked_lm"
        )
    if s.schedule == "epoch_decay":
        raise RecipeError(
            f"{path}: train.schedule 'epoch_decay' counts epochs, and a comparison counts its budget in "
            "steps; take another schedule"
        )
    train = {key: value for key, value in s.model_dump(exclude_defaults=True).items() if key not in _DECIDED}
    model = {
        key: value for key, value in own.model.items() if key != "vocab_size"
    }  # the tokenizer decides it
    rates = tuple(s.learning_rate * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0))
    try:
        longest = model_settings(own)[1].get("max_seq_len")
        if isinstance(longest, int) and longest > base.train.seq_len:
            model["max_seq_len"] = base.train.seq_len
        recipe = _recipe(
            base,
            own.name,
            model,
            {**train, "optimizer": s.optimizer, "objective": s.objective},
            shared=[key for key in SHARED if key not in _OPTIMIZER],
            masking=own.as_dict().get("masking"),
        )
        return _entry(recipe, own.name, rates, vocab_size)
    except (ConfigError, RecipeError) as error:
        raise RecipeError(f"{path}: {error}") from None


# Settings of an entered recipe that the comparison decides.
_DECIDED = (
    *("steps", "tokens", "epochs", "flops", "minutes", "learning_rate", "warmup_steps", "objective"),
    *("seq_len", "long_seq_len", "long_share", "batch_size", "micro_batch_size", "device", "threads"),
    *("evaluate_windows", "evaluate_every", "log_every", "sample_every"),
    *("sample_prompt", "sample_tokens", "save_every", "keep_best", "best_metric", "keep_last", "inspect"),
)


def _entry(recipe: Recipe, title: str, rates: tuple[float, ...], vocab_size: int) -> Entry:
    family, settings = model_settings(recipe)
    if family in ("gpt", "gpt2", "llama", "bert", "roberta"):
        settings.setdefault("max_seq_len", recipe.train.seq_len)
    config = entry_config(family, settings, vocab_size)
    check_length(config, recipe.train.seq_len)
    parameters, weights = count_parameters(config)
    return Entry(
        name=recipe.name,
        title=title,
        recipe=recipe,
        rates=rates,
        parameters=parameters,
        weights=weights,
        flops_per_token=flops_per_token(config, context=recipe.train.seq_len).training,
        encodes=encodes(config),
    )


def _recipe(
    base: Recipe,
    name: str,
    model: dict[str, Any],
    train: dict[str, Any],
    *,
    shared: Sequence[str],
    masking: dict[str, Any] | None = None,
) -> Recipe:
    """Return a recipe with the text, the tokenizer and the ``shared`` settings of ``base``."""
    given = base.train.model_dump(exclude_defaults=True)
    values = base.as_dict()
    data = values["data"]
    if train["objective"] != "causal_lm":
        data.pop("order", None)
    if train["objective"] != "truncated_bptt":
        data.pop("restart_share", None)
    found = {
        "name": name,
        "seed": base.seed,
        "data": data,
        "tokenizer": values["tokenizer"],
        "model": model,
        "train": {"steps": 1, **{key: given[key] for key in shared if key in given}, **train},
    }
    if masking is not None and train["objective"] == "masked_lm":
        found["masking"] = masking
    return read_recipe(Recipe, {}, found)
