"""The time of a training step on several GPUs: compute, communication, and what of it can overlap.

FSDP gathers the weights of the next block while a block is computed, in the forward and in the backward pass.
In the backward pass it also reduces the gradients of the block before.  Weights outside blocks are gathered
before the first block, and their gradients reduced after the last one, when nothing else can be done.
"""

from __future__ import annotations

from dataclasses import dataclass

from wordloom.models.building.cost import flops_per_token
from wordloom.recipe import TrainSettings
from wordloom.run.planning.gpus import Gpu
from wordloom.run.planning.layout import Layout
from wordloom.run.planning.shapes import WIDTHS, ModelShape, Weights

LINK_SHARE = 0.8  # of a link's rate that collective operations reach


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The GPUs of a run.

    Attributes:
        gpu: the kind of GPU.
        layout: how ranks share the model out, and the machines that they are on.
        utilisation: the share of the peak FLOP rate that the computation reaches.
    """

    gpu: Gpu
    layout: Layout
    utilisation: float


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Seconds of a forward or backward pass of a micro-batch."""

    compute: float
    communication: float

    @property
    def hides(self) -> bool:
        """Whether the communication takes no longer than the computation beside it."""
        return self.communication <= self.compute

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.compute, self.communication)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of training.

    Attributes:
        flops_per_token: operations of a token in training, without those that are computed again.
        forward, backward: the passes of a micro-batch.
        exposed: seconds of communication of a micro-batch beside which nothing is computed.
        parts: the micro-batches of a step on one rank.
        tokens: the tokens of a step on all ranks.
        micro_tokens: the tokens of a micro-batch on one rank.
        traffic: bytes that a GPU sends in a step.
        peak: the peak FLOP/s of all GPUs.
    """

    flops_per_token: int
    forward: Pass
    backward: Pass
    exposed: float
    parts: int
    tokens: int
    micro_tokens: int
    traffic: float
    peak: float

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.parts * (self.forward.seconds + self.backward.seconds + self.exposed)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all GPUs."""
        return self.tokens / self.step_seconds

    @property
    def hides(self) -> bool:
        """Whether the communication during both passes hides behind their computation."""
        return self.forward.hides and self.backward.hides

    @property
    def least_tokens(self) -> int:
        """The fewest tokens of a micro-batch on one rank with which communication hides."""
        ratios = (each.communication / each.compute for each in (self.forward, self.backward))
        return -int(-max(ratios) * self.micro_tokens // 1)

    @property
    def model_utilisation(self) -> float:
        """The share of the peak that the operations of the model reach, with all waiting."""
        return self.flops_per_token * self.tokens_per_second / self.peak


def speed_of(shape: ModelShape, settings: TrainSettings, cluster: Cluster, *, rows: int, parts: int) -> Speed:
    """Return the speed of training on ``cluster``; ``rows`` and ``parts`` as of ``peak_memory``."""
    s, layout = settings, cluster.layout
    flops = flops_per_token(shape.config, context=s.seq_len)
    peak = (cluster.gpu.fp32 if s.precision in ("fp32", "bf16-head") else cluster.gpu.bf16) * 1e12
    tokens = rows * s.seq_len
    forward = tokens * flops.forward / (peak * cluster.utilisation)
    tuned = shape.elements(trained=True) / shape.parameters
    products = 2 if tuned > 0.5 else 1  # an adapter's weights are few: no product gives weight gradients
    again = forward * flops.layers / flops.forward if s.gradient_checkpointing else 0.0
    links = _Links(cluster, WIDTHS[s.precision].weight)
    w, L = WIDTHS[s.precision], shape.n_layers
    gather = links.gather(shape.weights, w.gathered)
    reduce = links.reduce(shape.weights, w.reduced)
    ends = 0.0
    if layout.ranks > 1:
        ends = links.gather(shape.root, w.weight) + gather + links.reduce(shape.root, w.weight)
    sent = links.sent(shape.weights, w.gathered, w.reduced, gathers=2)
    return Speed(
        flops_per_token=flops.forward * (1 + products),
        forward=Pass(compute=forward, communication=L * gather),
        backward=Pass(compute=products * forward + again, communication=L * (gather + reduce)),
        exposed=ends,
        parts=parts,
        tokens=s.batch_size * s.seq_len,
        micro_tokens=tokens,
        traffic=parts * (L * sent + links.sent(shape.root, w.weight, w.weight, gathers=1)),
        peak=peak * layout.ranks,
    )


class _Links:
    """The seconds of collective operations, by rings that cross the border of a machine once.

    The GPUs of a machine share their network adapters, each of which carries a part of the ring.
    """

    def __init__(self, cluster: Cluster, weight: int) -> None:
        self.layout, self.weight = cluster.layout, weight
        self.link = cluster.gpu.bandwidth * 1e9 * LINK_SHARE
        self.network = cluster.gpu.network * 1e9 * LINK_SHARE

    def gather(self, weights: Weights, width: int) -> float:
        """Return the seconds in which all ranks gather ``weights``."""
        shards = self.layout.shards
        return self._ring(weights.elements(shards) * shards * width, shards)

    def reduce(self, weights: Weights, width: int) -> float:
        """Return the seconds in which all ranks add up the gradients of ``weights``."""
        shards, copies = self.layout.shards, self.layout.copies
        size = weights.elements(shards, trained=True) * shards * width
        seconds = self._ring(size, shards)
        if copies == 1:
            return seconds
        if shards == 1:
            return 2 * self._ring(size, copies)  # an all-reduce is a reduction and a gathering
        # each GPU adds its own shard up with those of other machines, by its own adapter
        own = weights.elements(shards, trained=True) * self.weight
        return seconds + 2 * own * (1 - 1 / copies) / (self.network or self.link)

    def sent(self, weights: Weights, gathered: int, reduced: int, *, gathers: int) -> float:
        """Return the bytes that a GPU sends to gather ``weights`` and to reduce their gradients."""
        shards, copies = self.layout.shards, self.layout.copies
        share = 1 - 1 / shards
        trained = weights.elements(shards, trained=True)
        total = share * shards * (gathers * weights.elements(shards) * gathered + trained * reduced)
        return total + 2 * trained * (reduced if shards == 1 else self.weight) * (1 - 1 / copies)

    def _ring(self, size: int, ranks: int) -> float:
        """Return the seconds in which ``size`` bytes go around a ring of ``ranks``."""
        near = min(ranks, self.layout.per_machine)
        machines = -(-ranks // self.layout.per_machine)
        seconds = size * (1 - 1 / ranks) / self.link if near > 1 else 0.0
        if machines > 1:
            seconds = max(seconds, size * (1 - 1 / machines) / (near * self.network))
        return seconds
