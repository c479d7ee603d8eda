"""Objectives of vectors of texts: those that belong together are to be nearer than others, or two as near as
people find them alike; (model, batch) -> Loss(total, count), as in :mod:`wordloom.objectives`.

    vector = pool(encoder(tokens)), divided by its length
    contrastive          softmax over scale * cosine(first, second of each row of the batch), its own is right
                         (Henderson et al. 2017, arXiv:1705.00652; with cosines and a scale as SimCSE, Gao et
                         al. 2021, arXiv:2104.08821, equation 1, and sentence-transformers)
    cosine_similarity    (cosine(first, second) - score)^2
                         (Reimers & Gurevych 2019, arXiv:1908.10084, section 3)
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.data.batches.labelled import LabelBatch
from wordloom.objectives import Loss

__all__ = ["TEXT_POOLINGS", "Contrastive", "CosineSimilarity", "TextPooling", "contrast", "text_vectors"]

TextPooling: TypeAlias = Literal["mean", "max", "cls"]
TEXT_POOLINGS: tuple[TextPooling, ...] = ("mean", "max", "cls")


def text_vectors(model: Any, tokens: Tensor, attend: Tensor, pooling: TextPooling) -> Tensor:
    """tokens and attend [.., T] of an encoder -> [.., D] float32 of length 1, one vector of each text.

    ``pooling`` is of all its tokens, marks included: their mean, the largest of each component, or the vector
    of the first, [CLS].
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
    """vectors [B, K, D] of length 1, of B rows of K texts -> logits [B, (K - 1) B] of what belongs to each
    first text: the second texts of all rows, its own in the row's place, then their third ones and so on.

    ``texts`` [B, K] numbers the texts, equal ones alike.  What would be a wrong negative has -inf: a text
    equal to the row's first or second, and the second text of a row with the same first.
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
    """Nats of finding each row's second text, given its first, among the second texts of the batch, and all
    further ones.

    The batch is what goes through at once: there are no negatives beyond it.

    Attributes:
        scale: of the cosines; 1 / scale is also called the temperature.
        symmetric: the mean of that and of finding the first text, given the second, among all firsts.
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
        with torch.autocast(vectors.device.type, enabled=False):
            total = self.nats(contrast(vectors, batch.targets, self.scale)).sum()
        return Loss(total, torch.tensor(len(tokens), device=total.device))

    def nats(self, logits: Tensor) -> Tensor:
        """Return the loss of each of B rows, from the logits [B, (K - 1) B] of :func:`contrast`."""
        own = torch.arange(len(logits), device=logits.device)
        there = F.cross_entropy(logits, own, reduction="none")
        if not self.symmetric:
            return there
        # a wrong negative is one both ways
        return (there + F.cross_entropy(logits[:, : len(logits)].T, own, reduction="none")) / 2

    def counts(self, batch: LabelBatch) -> list[int]:
        """All rows."""
        return [len(batch.targets)]


class CosineSimilarity:
    """Squared error of the cosines of B pairs of texts against targets [B]."""

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
        """All rows."""
        return [len(batch.targets)]
