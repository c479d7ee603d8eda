"""Objectives for sentence embeddings: (model, batch) -> Loss(total, count), as in :mod:`wordloom.objectives`.

The embedding and the losses::

    embedding = pool(encoder(tokens)), divided by its length
    contrastive          softmax over scale * cosine(first text, second text of each row); the target is the
                         second text of the same row (Henderson et al. 2017, arXiv:1705.00652; cosines
                         and a scale as in SimCSE, Gao et al. 2021, arXiv:2104.08821, equation 1)
    cosine_similarity    (cosine(first, second) - score)^2
                         (Reimers & Gurevych 2019, arXiv:1908.10084, section 3)
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from wordloom.data.batches.labelled import LabelBatch
from wordloom.objectives import Loss

TextPooling: TypeAlias = Literal["mean", "max", "cls"]
TEXT_POOLINGS: tuple[TextPooling, ...] = ("mean", "max", "cls")


def text_vectors(model: Any, tokens: Tensor, attend: Tensor, pooling: TextPooling) -> Tensor:
    """Return the embeddings of texts: tokens and attend [.., T] -> [.., D] float32 of length 1.

    ``pooling`` reads all tokens, special tokens included: their mean, the maximum of each component, or the
    vector of the first token, [CLS].
    """
    rows, there = tokens.flatten(0, -2), attend.flatten(0, -2)  # [R, T]
    x = model.hidden(rows, attend=there).float()  # [R, T, D]
    seen = there[..., None]
    match pooling:
        case "mean":
            x = x.masked_fill(~seen, 0.0).sum(1) / seen.sum(1)
        case "max":
            x = x.masked_fill(~seen, -torch.inf).amax(1)
        case "cls":
            x = x[:, 0]
    return F.normalize(x, dim=-1).view(*tokens.shape[:-1], -1)


def contrast(vectors: Tensor, texts: Tensor, scale: float) -> Tensor:
    """vectors [B, K, D] -> logits [B, (K - 1) B] of each row's first text with all texts but the first ones.

    The columns are the second texts of all rows, then the third texts, and so on; column b is row b's own.
    ``texts`` [B, K] has one number for equal texts.  False negatives have the logit -inf: a text equal to
    the row's first or second text, and the second text of a row with an equal first text.
    """
    B, K, D = vectors.shape
    first, others = vectors[:, 0], vectors[:, 1:].transpose(0, 1).reshape((K - 1) * B, D)
    logits = scale * (first @ others.T)  # [B, (K - 1) B]
    candidates = texts[:, 1:].T.reshape(-1)  # [(K - 1) B]
    same = (texts[:, 0, None] == candidates) | (texts[:, 1, None] == candidates)
    same[:, :B] |= texts[:, 0, None] == texts[:, 0]
    same[:, :B].fill_diagonal_(False)
    return logits.masked_fill(same, -torch.inf)


class Contrastive:
    """Cross-entropy of each row's second text among all texts of the batch but the first ones.

    All negatives come from the micro-batch; in training on several ranks, from that of all ranks.

    Attributes:
        scale: Factor of the cosines; 1 / scale is also called the temperature.
        symmetric: Average this loss with that of each row's first text among all first texts.
    """

    def __init__(
        self, pooling: TextPooling = "mean", *, scale: float = 20.0, symmetric: bool = False
    ) -> None:
        self.pooling, self.scale, self.symmetric = pooling, scale, symmetric

    def __call__(self, model: Any, batch: LabelBatch) -> Loss:
        tokens, attend = batch.inputs
        assert tokens is not None
        assert attend is not None
        vectors = text_vectors(model, tokens, attend, self.pooling)
        texts, own = batch.targets, slice(None)
        if torch.is_grad_enabled() and dist.is_initialized() and dist.get_world_size() > 1:
            vectors, texts, own = _of_all_ranks(vectors, texts)
        with torch.autocast(vectors.device.type, enabled=False):
            total = self.nats(contrast(vectors, texts, self.scale))[own].sum()
        return Loss(total, torch.tensor(len(tokens), device=total.device))

    def nats(self, logits: Tensor) -> Tensor:
        """Return the loss of each of B rows, from the logits [B, (K - 1) B] of :func:`contrast`."""
        own = torch.arange(len(logits), device=logits.device)
        there = F.cross_entropy(logits, own, reduction="none")
        if not self.symmetric:
            return there
        # false negatives are masked in both directions
        return (there + F.cross_entropy(logits[:, : len(logits)].T, own, reduction="none")) / 2

    def counts(self, batch: LabelBatch) -> list[int]:
        """Return the number of rows."""
        return [len(batch.targets)]


def _of_all_ranks(vectors: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, slice]:
    """Return the vectors [B, K, D] and texts [B, K] of all ranks, and where this rank's rows are."""
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=vectors.device)
    counts[dist.get_rank()] = len(vectors)
    dist.all_reduce(counts)
    stops = counts.cumsum(0).tolist()
    own = slice(stops[dist.get_rank()] - len(vectors), stops[dist.get_rank()])
    every = texts.new_zeros(stops[-1], texts.shape[1])
    every[own] = texts
    dist.all_reduce(every)
    return _Gathered.apply(vectors, own, stops[-1]), every, own  # type: ignore[no-untyped-call]


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, from those of each; the gradient of a row is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, own: slice, n: int) -> Tensor:
        ctx.own = own
        every = vectors.new_zeros(n, *vectors.shape[1:])
        every[own] = vectors
        dist.all_reduce(every)
        return every

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad[ctx.own], None, None


class CosineSimilarity:
    """Squared error of the cosines of B pairs of texts, compared with targets [B]."""

    def __init__(self, pooling: TextPooling = "mean") -> None:
        self.pooling = pooling

    def __call__(self, model: Any, batch: LabelBatch) -> Loss:
        tokens, attend = batch.inputs
        assert tokens is not None
        assert attend is not None
        vectors = text_vectors(model, tokens, attend, self.pooling)  # [B, 2, D]
        total = F.mse_loss(vectors.prod(1).sum(-1), batch.targets, reduction="sum")
        return Loss(total, torch.tensor(len(tokens), device=total.device))

    def counts(self, batch: LabelBatch) -> list[int]:
        """Return the number of rows."""
        return [len(batch.targets)]
