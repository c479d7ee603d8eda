"""Bag of words: multinomial logistic regression on word counts (Maron 1961; tf-idf after Sparck Jones 1972).

    logits = features(counts) W^T + b,      W [C, V]

- ``counts``: how often each word occurs.  ``binary``: whether each word occurs.
- ``tfidf``: counts times ln((1 + N) / (1 + df)) + 1, each row divided by its Euclidean length.

Departure from the papers: tf-idf in scikit-learn's form.

The idf [V] is a buffer, saved with the weights.  To avoid a weighted copy of each batch, the idf multiplies
the columns of W, and a row's length divides its logits.

Parameters: C V + C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.kernels.acceptance import fall_back
from wordloom.models.checks import check_labels, check_settings, fills_everything
from wordloom.nn.bags import bag_products
from wordloom.nn.unmodified import modification

FEATURES = ("counts", "binary", "tfidf")


@dataclass(frozen=True, kw_only=True)
class BagOfWordsConfig:
    """Settings; ``vocab_size`` is V, ``id2label`` maps "0", "1", ... to the names of the C classes."""

    vocab_size: int
    id2label: Mapping[str, Any]
    features: str = "tfidf"
    max_ngram: int = 1  # most words in one feature

    def __post_init__(self) -> None:
        check_settings(self)
        if self.features not in FEATURES:
            raise ConfigError(
                f"unknown features {self.features!r}; {did_you_mean(str(self.features), FEATURES)}"
            )
        check_labels(self)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order."""
        return tuple(str(name) for name in self.id2label.values())


class BagOfWords(nn.Module):
    """Logits [B, C] of bags of words; see the module."""

    def __init__(self, config: BagOfWordsConfig) -> None:
        super().__init__()
        self.config = config
        self.classifier = nn.Linear(config.vocab_size, len(config.id2label))
        self.idf: Tensor | None
        self.register_buffer("idf", torch.ones(config.vocab_size) if config.features == "tfidf" else None)

    def forward(self, ids: Tensor, counts: Tensor, offsets: Tensor) -> Tensor:
        """ids [n], counts [n], offsets [B + 1] (:class:`wordloom.data.Bags`) -> logits [B, C] float32."""
        weights = torch.ones_like(counts) if self.config.features == "binary" else counts
        scale: Tensor | float = 1.0
        if self.config.features == "tfidf":
            scale = self._lengths(ids, counts, offsets)[:, None]
        if reason := modification(self.classifier, nn.Linear):
            fall_back("BagOfWords", reason)
            return self.classifier(self._features(ids, weights, offsets) / scale).float()  # [B, C]
        matrix = self.classifier.weight  # [C, V]
        matrix = matrix if self.idf is None else matrix * self.idf
        return (bag_products(ids, weights, offsets, matrix) / scale + self.classifier.bias).float()  # [B, C]

    def _features(self, ids: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
        """Return dense rows [B, V], before tf-idf divides them by their lengths."""
        V = self.config.vocab_size
        sizes = offsets.diff().long()  # [B]
        rows = torch.repeat_interleave(torch.arange(len(sizes), device=ids.device), sizes)  # [n]
        dense = torch.zeros(len(sizes), V, dtype=torch.float32, device=ids.device)
        dense.index_put_((rows, ids.long()), weights.float(), accumulate=True)
        return dense if self.idf is None else dense * self.idf

    @torch.no_grad()
    def _lengths(self, ids: Tensor, counts: Tensor, offsets: Tensor) -> Tensor:
        """Return the Euclidean length of each tf-idf row, [B]; 1 for a row without words."""
        assert self.idf is not None
        squares = self.idf.square()[None]  # [1, V]
        lengths = bag_products(ids, counts.square(), offsets, squares).sqrt().squeeze(1)  # [B]
        return torch.where(lengths > 0, lengths, torch.ones_like(lengths))

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Zero: the objective is convex, so every start leads to the same optimum.

        The idf is 1 until it is computed from the training rows.
        """
        self.classifier.weight.zero_()
        self.classifier.bias.zero_()
        if self.idf is not None:
            self.idf.fill_(1.0)

    def tie_weights(self) -> None:
        """Do nothing: no weights are tied."""
