"""The memory of one rank in a training step, found by a walk through the step.

:class:`Walk` takes and gives back bytes in the order in which the trainer, FSDP2 and autograd do.  The peak
is the largest sum on the way.  What FSDP2 does is described beside each method; the tests compare the walk
with PyTorch's own simulation of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from wordloom.nn.head import CHUNK_BYTES
from wordloom.recipe import TrainSettings
from wordloom.run.planning.blocks import Stage, stages
from wordloom.run.planning.layout import Layout
from wordloom.run.planning.shapes import WIDTHS, ModelShape, Weights, Widths, state_bytes

KINDS = (
    "weights",
    "optimizer state",
    "gradients",
    "gathered weights",
    "gradients to reduce",
    "activations",
    "head and loss",
    "optimizer step",
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The largest memory of a rank, in bytes by kind, and when it is reached.

    ``start`` and ``checkpoint`` count bytes of a machine's main memory.  At the start, a rank builds all
    weights in float32: one for all if they are shared out, else each.  While a checkpoint is written, each
    rank has a copy of its weights and state, and the files of the ranks hold each number once; or the first
    rank gathers those of all.
    """

    by_kind: dict[str, int]
    moment: str
    start: int
    checkpoint: int

    @property
    def total(self) -> int:
        """All bytes at the peak."""
        return sum(self.by_kind.values())


def peak_memory(
    shape: ModelShape, settings: TrainSettings, layout: Layout, *, rows: int, parts: int = 1, compiled: bool
) -> Memory:
    """Return the largest memory of a rank.

    Args:
        shape: the model.
        settings: those of training, with a precision that is not "auto".
        layout: how ranks share the model out.
        rows: the rows of a micro-batch on one rank.
        parts: the micro-batches of a step on one rank.
        compiled: blocks are compiled.
    """
    walk = Walk(shape, settings, layout, tokens=rows * settings.seq_len, parts=parts, compiled=compiled)
    walk.run()
    is_shared_out = settings.shard != "none" and shape.elements(trained=True) == shape.elements()
    return Memory(
        by_kind={kind: walk.peak[kind] for kind in KINDS},
        moment=walk.peak_moment,
        start=(1 if is_shared_out else layout.per_machine) * 4 * shape.elements(),
        checkpoint=_checkpoint_bytes(shape, settings, layout, walk.widths),
    )


def _checkpoint_bytes(shape: ModelShape, settings: TrainSettings, layout: Layout, widths: Widths) -> int:
    """Return the main memory of a machine that a checkpoint takes while it is written."""
    adapter = shape.elements(trained=True) < shape.elements()
    gathered = layout.ranks == 1 or settings.consolidate or adapter
    shards = 1 if gathered else layout.shards
    state = shape.elements(shards) * widths.weight + state_bytes(shape, settings, shards)
    if gathered:
        return state
    copies = layout.per_machine * state
    return copies + copies * layout.shards // layout.ranks


class Walk:
    """A training step on one rank, as takings and givings of memory.

    Attributes:
        live: the bytes that are taken, by kind.
        peak: those at the moment of the largest sum.
    """

    def __init__(
        self,
        shape: ModelShape,
        settings: TrainSettings,
        layout: Layout,
        *,
        tokens: int,
        parts: int,
        compiled: bool,
    ) -> None:
        self.shape, self.settings, self.layout, self.tokens, self.parts = (
            shape, settings, layout, tokens, parts,
        )  # fmt: skip
        self.widths: Widths = WIDTHS[settings.precision]
        self.stages: list[Stage] = stages(shape.block, self.widths, compiled=compiled)
        self.compiled = compiled
        self.alone = layout.ranks == 1  # then there is no FSDP
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.moment = self.peak_moment = "start"
        self._total = self._most = 0

    def take(self, kind: str, size: int) -> None:
        """Add bytes of a kind."""
        self.live[kind] += size
        self._total += size
        if self._total > self._most:
            self._most, self.peak, self.peak_moment = self._total, self.live.copy(), self.moment

    def give(self, kind: str, size: int) -> None:
        """Take bytes of a kind away."""
        self.live[kind] -= size
        self._total -= size

    def touch(self, kind: str, size: int) -> None:
        """Add bytes and take them away at once."""
        self.take(kind, size)
        self.give(kind, size)

    def run(self) -> None:
        """Walk through a step."""
        shards = self.layout.shards
        self.take("weights", self.shape.elements(shards) * self.widths.weight)
        self.take("optimizer state", state_bytes(self.shape, self.settings, shards))
        for part in range(min(2, self.parts)):  # others repeat the second
            self.is_later = part > 0
            self._forward()
            self._head()
            self._backward()
        self._optimizer()

    # -- the weights of other ranks --------------------------------------------------------------------

    def _gather(self, weights: Weights, width: int, *, copied: bool) -> None:
        """Take the buffer that all ranks fill, and the rounded part of this rank that goes into it."""
        if self.layout.shards > 1:
            own = weights.elements(self.layout.shards) * width
            self.take("gathered weights", own * self.layout.shards)
            if copied:
                self.take("gathered weights", own)
                self.give("gathered weights", own)

    def _drop_buffer(self, weights: Weights, width: int) -> None:
        if self.layout.shards > 1:
            own = weights.elements(self.layout.shards) * width
            self.give("gathered weights", own * self.layout.shards)

    def _unpacked(self, weights: Weights, width: int) -> int:
        """Return the bytes of gathered weights in their shapes; without FSDP the weights themselves serve."""
        return 0 if self.alone else weights.elements(self.layout.shards) * self.layout.shards * width

    @property
    def _block_bytes(self) -> int:
        return self._unpacked(self.shape.weights, self.widths.gathered)

    @property
    def _root_bytes(self) -> int:
        return self._unpacked(self.shape.root, self.widths.weight)

    # -- forward -----------------------------------------------------------------------------------------

    def _forward(self) -> None:
        """Gather the root, then each block; the buffer of a group stays until the next one is gathered."""
        w, N = self.widths, self.tokens
        self.moment = "forward pass"
        stream = w.residual * self.shape.block.dim * N  # bytes of the residual stream
        self._gather(self.shape.root, w.weight, copied=False)
        self.take("gathered weights", self._root_bytes)
        self.take("activations", stream)
        if self.shape.embedding_dropout:
            self.take("activations", self.shape.block.dim * N)
        kept = self._kept
        for i in range(self.shape.n_layers):
            self._gather(self.shape.weights, w.gathered, copied=w.gathered != w.weight)
            before = (self.shape.weights, w.gathered) if i else (self.shape.root, w.weight)
            self._drop_buffer(*before)
            self.take("gathered weights", self._block_bytes)
            if self.settings.gradient_checkpointing:
                self.touch("activations", self._passing)
            else:
                self.take("activations", kept)
                self.touch("activations", stream + w.compute * self.shape.block.dim * N)  # the block's result
            if self._keeps_inputs:  # else the norm keeps a float32 copy instead
                self.take("activations", stream)
            self.give("gathered weights", self._block_bytes)

    @property
    def _passing(self) -> int:
        """The most bytes of activations within a block that keeps none: those of one of its two layers."""
        kept = {stage.name: stage.kept for stage in self.stages}
        layers = (kept["attention"] + kept["o"], kept["activation"] + kept["down"])
        return (max(layers) + 2 * self.widths.residual * self.shape.block.dim) * self.tokens

    @property
    def _kept(self) -> int:
        """The bytes that a block keeps for its backward pass, beside its input."""
        kept = sum(stage.kept for stage in self.stages) * self.tokens
        if self._rounds_weights:
            kept += self.shape.weights.elements(matrices=True) * self.widths.compute
        return kept

    @property
    def _rounds_weights(self) -> bool:
        """Whether autograd keeps a rounded copy of each matrix: only where FSDP does not round them."""
        return self.alone and self.widths.compute != self.widths.weight and not self.compiled

    # -- the head ----------------------------------------------------------------------------------------

    def _head(self) -> None:
        """Compute the loss in chunks of logits, each with its gradients; then the head's backward pass."""
        self.moment = "loss"
        kind, w, N = "head and loss", self.widths, self.tokens
        D, V, h = self.shape.block.dim, self.shape.vocab_size, w.head
        stream = w.residual * D * N
        chunks = max(1, -(-N * V * h // CHUNK_BYTES))
        rows = -(-N // chunks)
        matrix = V * D if self.shape.trains_head else 0
        if w.residual != 4:
            self.take("activations", 4 * D * N)  # the input of the last norm in float32
        self.take(kind, stream)  # the result of the last norm
        self.take(kind, stream)  # its gradient
        rounded = 0 if h == w.weight else h * V * D
        self.take(kind, rounded)
        logits, error = rows * V * h, rows * V * h
        self.take(kind, logits)
        self.touch(kind, 4 * rows * V * (1 if h == 4 else 2))  # log-probabilities, of logits in float32
        self.take(kind, error)
        self.take(kind, h * matrix)
        if h != 4:  # products of 16 bits are added up in float32
            self.take(kind, 4 * matrix)
        if chunks > 1:
            # the error and the product of a chunk stay while the next one is computed
            before = h * matrix if h == 4 and chunks > 2 else 0
            self.touch(kind, before + max(h * matrix, 4 * rows * V * (1 if h == 4 else 2)))
        # in the end, both gradients are left
        self.give(kind, h * matrix if h != 4 else 0)
        self.give(kind, error + logits + rounded + stream)
        if not self.alone:
            self._drop_buffer(self.shape.weights, w.gathered)
        self._head_backward(stream, matrix)

    def _head_backward(self, stream: int, matrix: int) -> None:
        """Scale both gradients into new tensors; the root starts to gather the last block before."""
        w, kind = self.widths, "head and loss"
        self.moment = "backward pass"
        self._gather(self.shape.weights, w.gathered, copied=w.gathered != w.weight)
        self.take("activations", stream)
        self.take("gradients to reduce", 4 * matrix)
        if w.weight != 4:
            self.take("gradients to reduce", w.weight * matrix)
            self.give("gradients to reduce", 4 * matrix)
        self.give(kind, stream + 4 * matrix)
        self.touch("activations", 4 * self.shape.block.dim * self.tokens)  # the last norm
        self.give("activations", stream if w.residual == 4 else 4 * self.shape.block.dim * self.tokens)

    # -- backward ----------------------------------------------------------------------------------------

    def _backward(self) -> None:
        """Go back through the blocks; while a block is computed, the one before it is gathered."""
        w, shape = self.widths, self.shape
        stream = w.residual * shape.block.dim * self.tokens
        reduced = self._padded(shape.weights) * w.reduced
        for i in reversed(range(shape.n_layers)):
            self.take("gathered weights", self._block_bytes)
            self._drop_buffer(shape.weights, w.gathered)
            if i:
                self._gather(shape.weights, w.gathered, copied=w.gathered != w.weight)
            self._block_backward()
            self.give("gathered weights", self._block_bytes)
            if i < shape.n_layers - 1:
                self._end_reduction(reduced)
            self._reduce(shape.weights, w.gathered, w.reduced)
            self.give("activations", stream if self._keeps_inputs else 0)
        self._root_backward(reduced)
        self.give("activations", self.live["activations"])  # none outlives the pass

    @property
    def _keeps_inputs(self) -> bool:
        """Whether the input of each block is kept as it is, beside the bytes of the block."""
        return self.widths.residual == 4 or self.settings.gradient_checkpointing

    def _block_backward(self) -> None:
        """Go back through the stages of a block, after computing its activations again where they are."""
        N, recomputes = self.tokens, self.settings.gradient_checkpointing
        left, others = self._kept, self._trained(self.shape.weights)
        matrices = sum(stage.weights for stage in self.stages)
        is_tuned = others >= matrices  # an adapter is small, and its gradients are taken at the end
        if recomputes:
            self.take("activations", left)
        for stage in reversed(self.stages):
            self._weight_gradients(stage.weights if is_tuned else 0)
            self.touch("activations", stage.during * N)
            self.give("activations", stage.kept * N)
            left -= stage.kept * N
        self.give("activations", left)  # rounded weights
        self._weight_gradients(others - matrices if is_tuned else others)  # norms and biases

    def _trained(self, weights: Weights) -> int:
        return weights.elements(trained=True)

    def _padded(self, weights: Weights) -> int:
        """Return the elements of a buffer of gradients, in which all ranks have equal parts."""
        return weights.elements(self.layout.shards, trained=True) * self.layout.shards

    def _weight_gradients(self, elements: int) -> None:
        if not self._trained(self.shape.weights):
            return
        w = self.widths
        if not self.alone:
            self.take("gradients to reduce", elements * w.gathered)
            return
        if w.compute != w.weight:
            self.touch("gradients to reduce", elements * w.compute)
        self._keep_gradients(elements * w.weight)

    def _keep_gradients(self, size: int) -> None:
        """Take the bytes of gradients of this rank; those of later micro-batches are added to the first."""
        self.take("gradients", size)
        if self.is_later:
            self.give("gradients", size)

    def _reduce(self, weights: Weights, width: int, reduced: int) -> None:
        """Copy gradients into a buffer, free them, and add the buffers of all ranks up.

        The buffer stays until the next reduction.
        """
        if self.alone:
            return
        padded = self._padded(weights)
        self.take("gradients to reduce", padded * reduced)
        self.give("gradients to reduce", self._trained(weights) * width)
        own = padded // self.layout.shards * self.widths.weight
        if self.layout.shards == 1:
            self.touch("gradients to reduce", padded * reduced + own)  # the sum, of a copy that is divided
        self._keep_gradients(own)

    def _end_reduction(self, size: int) -> None:
        if not self.alone:
            self.give("gradients to reduce", size)

    def _root_backward(self, reduced: int) -> None:
        """Compute the gradients of embeddings, and reduce all gradients outside blocks."""
        w, root = self.widths, self.shape.root
        head = self.shape.vocab_size * self.shape.block.dim if self.shape.trains_head else 0
        trained = self._trained(root)
        if self.alone:
            self._keep_gradients(trained * w.weight)
            self.give("gradients to reduce", head * w.weight)
            return
        # a tied head has a gradient beside that of the embedding, and their sum is a third tensor
        embedded = trained - (0 if self.shape.is_tied else head)
        self.take("gradients to reduce", embedded * w.weight)
        if self.shape.is_tied:
            self.touch("gradients to reduce", head * w.weight)
            self.give("gradients to reduce", head * w.weight)
        self.give("gathered weights", self._root_bytes)
        self._end_reduction(reduced)
        if trained:
            self._reduce(root, w.weight, w.weight)
            self._end_reduction(self._padded(root) * w.weight)

    # -- the optimizer -------------------------------------------------------------------------------------

    def _optimizer(self) -> None:
        """Take the temporary memory of the optimizer; fused AdamW needs none.

        Muon gathers all matrices of one shape and orthogonalises them together.
        """
        self.moment = "optimizer step"
        if self.settings.optimizer != "muon":
            return
        shapes: Counter[tuple[int, ...]] = Counter()
        for size, trained in self.shape.weights.shapes:
            if trained and len(size) == 2:
                shapes[size] += self.shape.n_layers
        for (rows, columns), count in shapes.items():
            elements = count * rows * columns
            grams = count * min(rows, columns) ** 2
            updates = 4 * elements // self.layout.shards
            # float32 matrices; beside them x in bfloat16 with its products, or with the result in float32
            self.touch("optimizer step", updates + 4 * elements + max(4 * elements + 4 * grams, 6 * elements))
