"""Linear probes: what can be read from the vectors after each layer (Alain & Bengio 2016, arXiv:1610.01644).

A logistic regression predicts the label of a text from one vector of it, for each layer.  A control says how
much of that can be chance: it is trained and scored on the same labels in random order, about which the
vectors hold nothing (after the control tasks of Hewitt & Liang 2019, arXiv:1909.03368).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import ConfigError, DataError, NonFiniteError, WordloomError
from wordloom.inspect.figures import COLOURS, FONT, hide_frame, new_figure
from wordloom.inspect.layers.states import input_name, layer_name, layer_states, row_of
from wordloom.inspect.view import Table, View
from wordloom.nn.evaluating import evaluating

Pooling = Literal["mean", "last", "first"]
MOST_STEPS = 1000  # of the optimizer
_FEW = 50  # held-out texts: an accuracy of 50 % has a standard deviation of 7 percentage points


@dataclass(frozen=True)
class Probe(View):
    """Accuracy on held-out texts by layer, [L + 1]: of the labels, and of the control."""

    accuracy: tuple[float, ...]
    control: tuple[float, ...]
    majority: float  # share of the most frequent training label among the held-out ones
    train_texts: int
    test_texts: int
    labels: tuple[str, ...]
    pooling: Pooling
    first: str = "embedding"  # the name of the vectors before the first layer
    title: str = "What a linear probe reads after each layer"

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def tables(self) -> list[Table]:
        rows = [
            (layer_name(layer, self.first), f"{right:.1%}", f"{control:.1%}")
            for layer, (right, control) in enumerate(zip(self.accuracy, self.control, strict=True))
        ]
        return [Table(self.title, ("after", "accuracy", "control"), rows)]

    def notes(self) -> list[str]:
        lines = [
            f"{len(self.labels)} labels, {self.train_texts:,} texts to train on and {self.test_texts:,} held "
            f"out; the most frequent label of training is right for {self.majority:.1%} of these",
        ]
        if self.test_texts < _FEW:
            lines.append(f"{self.test_texts} held-out texts are too few to tell layers apart")
        return lines

    def figure(self) -> Any:
        figure = new_figure((4.6, 3.2))
        panel = figure.subplots()
        layers = range(len(self.accuracy))
        panel.plot(layers, [100 * v for v in self.accuracy], marker="o", label="labels")
        panel.plot(layers, [100 * v for v in self.control], marker="s", label="control")
        panel.axhline(100 * self.majority, color=COLOURS[9], linestyle=":", label="most frequent label")
        panel.set_xticks(layers, [str(layer - 1) for layer in layers])
        panel.set_xlabel(f"after layer; −1: the {self.first}")
        panel.set_ylabel("held-out texts, %")
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=FONT - 1)
        hide_frame(panel)
        return figure


def probe(
    model: Any,
    rows: Sequence[Sequence[int]],
    labels: Sequence[str],
    *,
    pooling: Pooling = "mean",
    test_share: float = 0.25,
    seed: int = 0,
) -> Probe:
    """Return how well the label of each of N texts can be read after each layer of ``model``.

    Args:
        rows: the ids of the texts.
        labels: the label of each text.
        pooling: the vector of a text: the mean of its tokens' vectors, the last one, or the first one.
        test_share: the share of the texts that are held out.
        seed: the seed of the split and of the control.

    Raises:
        DataError: fewer than two labels, or too few texts to hold some out.
        ConfigError: an impossible share or pooling.
        WordloomError: scikit-learn is not installed.
    """
    if pooling not in ("mean", "last", "first"):
        raise ConfigError(f"unknown pooling {pooling!r}; allowed: mean, last, first")
    if not 0 < test_share < 1:
        raise ConfigError(f"test_share is a share between 0 and 1, not {test_share:g}")
    names = sorted(set(labels))
    if len(names) < 2:
        what = "all texts have one label" if names else "there are no texts"
        raise DataError(f"{what}; a probe needs two labels or more")
    n_test = round(test_share * len(rows))
    if n_test < 1 or len(rows) - n_test < len(names):
        raise DataError(f"{len(rows)} texts are too few to train on some and hold out others")
    vectors = text_vectors(model, rows, pooling)  # [L + 1, N, D]
    if not all(np.isfinite(each).all() for each in vectors):
        raise NonFiniteError("a vector is not finite; the model's weights are damaged")
    targets = np.array([names.index(label) for label in labels])
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(rows))
    test, train = order[:n_test], order[n_test:]
    if len(set(targets[train].tolist())) < 2:
        raise DataError("all texts to train on have one label; give more texts")
    shuffled = draw.permutation(targets)
    while len(set(shuffled[train].tolist())) < 2:  # of few texts; a probe needs two labels
        shuffled = draw.permutation(targets)
    frequent = Counter(targets[train].tolist()).most_common(1)[0][0]
    return Probe(
        accuracy=tuple(_accuracy(x, targets, train, test) for x in vectors),
        control=tuple(_accuracy(x, shuffled, train, test) for x in vectors),
        majority=float((targets[test] == frequent).mean()),
        train_texts=len(train),
        test_texts=len(test),
        labels=tuple(names),
        pooling=pooling,
        first=input_name(model),
    )


def text_vectors(model: Any, rows: Sequence[Sequence[int]], pooling: Pooling) -> list[NDArray[np.float32]]:
    """Return one vector for each text after each layer: L + 1 arrays [N, D]."""
    found: list[list[NDArray[np.float32]]] = []
    with evaluating(model):
        for ids in rows:
            states = [x[0].float() for x in layer_states(model, row_of(model, ids))]  # L + 1 of [T, D]
            pooled = [x.mean(0) if pooling == "mean" else x[-1 if pooling == "last" else 0] for x in states]
            found.append([x.cpu().numpy() for x in pooled])
    return [np.stack(layer) for layer in zip(*found, strict=True)]


def _accuracy(
    x: NDArray[np.float32], targets: NDArray[np.int64], train: NDArray[np.int64], test: NDArray[np.int64]
) -> float:
    """Train a probe on standardised vectors [N, D], and return its accuracy on the held-out ones."""
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise WordloomError("probes need scikit-learn: pip install scikit-learn") from None
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=MOST_STEPS))
    classifier.fit(x[train], targets[train])
    return float((classifier.predict(x[test]) == targets[test]).mean())
