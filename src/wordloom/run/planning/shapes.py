"""The shapes of a model and the sizes of its numbers, from which a plan is computed.

All are read from the model on the meta device, so that no weight is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from wordloom.errors import RecipeError
from wordloom.models import family_of
from wordloom.nn import Attention, GatedFeedForward
from wordloom.recipe import TrainSettings

# Families whose blocks are an attention and a feed-forward layer, and whose loss is that of the next token.
FAMILIES = ("gpt", "gpt2", "llama")

# The activations that keep their result for the backward pass, which the next layer keeps too.
_KEEP_RESULT = ("relu", "sigmoid", "identity")


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The bytes of a number, by its use in training.

    Attributes:
        weight: of a weight, and of its gradient as ranks store it.
        gathered: of a gathered weight of a block, and of its gradient in the backward pass.
        reduced: of a block's gradient that ranks add up.
        residual: of the residual stream between layers.
        compute: of the matrix products in blocks.
        head: of the matrix products in the language-model head.
    """

    weight: int
    gathered: int
    reduced: int
    residual: int
    compute: int
    head: int


WIDTHS = {
    "fp32": Widths(weight=4, gathered=4, reduced=4, residual=4, compute=4, head=4),
    "bf16": Widths(weight=4, gathered=2, reduced=4, residual=4, compute=2, head=2),
    "bf16-pure": Widths(weight=2, gathered=2, reduced=2, residual=2, compute=2, head=2),
    "bf16-head": Widths(weight=4, gathered=4, reduced=4, residual=4, compute=4, head=2),
}


@dataclass(frozen=True)
class Weights:
    """The weights that are gathered and reduced together: those of a block, or those outside blocks.

    Attributes:
        shapes: the shape of each weight, and whether it is trained.
    """

    shapes: tuple[tuple[tuple[int, ...], bool], ...]

    @classmethod
    def of(cls, parameters: Iterable[nn.Parameter]) -> Weights:
        """Return the shapes of ``parameters``."""
        return cls(tuple((tuple(p.shape), p.requires_grad) for p in parameters))

    def elements(self, shards: int = 1, *, trained: bool = False, matrices: bool | None = None) -> int:
        """Return the number of elements on one of ``shards`` ranks.

        The rows of a weight are divided, and all ranks have as many as the one that has most.

        Args:
            shards: the number of ranks that share the weights.
            trained: count the trained weights alone.
            matrices: count matrices alone (True), or the others alone (False).
        """
        total = 0
        for shape, is_trained in self.shapes:
            if (is_trained or not trained) and matrices in (None, len(shape) == 2):
                rows, rest = (shape[0], 1) if shape else (1, 1)
                for size in shape[1:]:
                    rest *= size
                total += -(-rows // shards) * rest
        return total


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """The sizes of a Transformer block.

    Attributes:
        dim, hidden_dim: D and F.
        queries, keys: the elements of all queries of a token, H E, and of its keys, K E.
        n_heads: H.
        rotary: queries and keys are rotated.
        gated: the feed-forward layer has a gate.
        keeps_input: the activation keeps its input for the backward pass, beside its result.
        dropout: the results of both layers are dropped at random.
    """

    dim: int
    hidden_dim: int
    queries: int
    keys: int
    n_heads: int
    rotary: bool
    gated: bool
    keeps_input: bool
    dropout: bool

    @property
    def is_grouped(self) -> bool:
        """Whether several queries share a key."""
        return self.keys < self.queries


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a model that decide its memory and speed.

    Attributes:
        config: the model's config.
        n_layers: the number of blocks.
        block: the sizes of each block.
        weights: the weights of each block.
        root: all other weights, which are gathered together.
        vocab_size: V.
        trains_head: the weights of the language-model head are trained.
        is_tied: the head shares its weights with the embedding.
        embedding_dropout: the embeddings are dropped at random.
    """

    config: Any
    n_layers: int
    block: BlockShape
    weights: Weights
    root: Weights
    vocab_size: int
    trains_head: bool
    is_tied: bool
    embedding_dropout: bool

    @property
    def parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return self.n_layers * self.weights.elements() + self.root.elements()

    def elements(self, shards: int = 1, *, trained: bool = False, matrices: bool | None = None) -> int:
        """Return the elements of all weights on one of ``shards`` ranks; see :meth:`Weights.elements`."""
        parts = (weights.elements(shards, trained=trained, matrices=matrices) for weights in self._parts)
        each, others = parts
        return self.n_layers * each + others

    @property
    def _parts(self) -> tuple[Weights, Weights]:
        return self.weights, self.root


def shape_of(model: Any) -> ModelShape:
    """Return the shapes of ``model``, on any device.

    Raises RecipeError for a family that a plan does not know.
    """
    family = family_of(model.config)
    if family not in FAMILIES:
        raise RecipeError(
            f"wordloom plan knows the causal Transformers {', '.join(FAMILIES)}, and this recipe's model is "
            f"'{family}'; wordloom train reports its memory and time before the first step"
        )
    block = model.blocks[0]
    in_blocks = {id(p) for p in model.blocks.parameters()}
    others = [p for p in model.parameters() if id(p) not in in_blocks]
    config, head = model.config, model.lm_head.weight
    return ModelShape(
        config=config,
        n_layers=len(model.blocks),
        block=_block_shape(block, config),
        weights=Weights.of(block.parameters()),
        root=Weights.of(others),
        vocab_size=config.vocab_size,
        trains_head=head.requires_grad,
        is_tied=head is model.token_embedding.weight,
        embedding_dropout=bool(model.embedding_dropout),
    )


def _block_shape(block: Any, config: Any) -> BlockShape:
    attention: Attention = block.attention
    return BlockShape(
        dim=config.dim,
        hidden_dim=block.feed_forward.up_proj.out_features,
        queries=attention.n_heads * attention.head_dim,
        keys=attention.n_kv_heads * attention.head_dim,
        n_heads=attention.n_heads,
        rotary=family_of(config) == "llama",
        gated=isinstance(block.feed_forward, GatedFeedForward),
        keeps_input=config.activation not in _KEEP_RESULT,
        dropout=bool(block.dropout),
    )


def state_bytes(shape: ModelShape, settings: TrainSettings, shards: int) -> int:
    """Return the bytes of optimizer state, master weights and averages on one of ``shards`` ranks."""
    s = settings
    trained = shape.elements(shards, trained=True)
    if s.optimizer == "sgd":
        total = 4 * trained if s.momentum else 0
    elif s.optimizer == "muon":  # Muon keeps a momentum for each matrix of the blocks, AdamW two moments
        in_muon = shape.n_layers * shape.weights.elements(shards, trained=True, matrices=True)
        total = 8 * (trained - in_muon) + 4 * in_muon
    else:
        total = 8 * trained
    if s.precision == "bf16-pure":
        total += 8 * trained  # float32 weights, and their gradients of the last step
    return total + (4 * trained if s.ema else 0)
