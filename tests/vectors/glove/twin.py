"""GloVe in plain NumPy, as in the paper: the slow reference for the kernels.

Pennington, Socher & Manning 2014, "GloVe: Global Vectors for Word Representation", equations 8 and 9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def weighting(x: float, x_max: float = 100.0, alpha: float = 0.75) -> float:
    """Return f(x), equation 9."""
    return (x / x_max) ** alpha if x < x_max else 1.0


def loss_and_gradients(
    w: Array, b: float, w_context: Array, b_context: float, x: float, f: float
) -> tuple[float, Array, float, Array, float]:
    """Return half of one term of equation 8, f (w^T w~ + b + b~ - log x)^2 / 2, and its derivatives with
    respect to w, b, w~ and b~."""
    difference = w @ w_context + b + b_context - np.log(x)
    return (
        f * difference**2 / 2,
        f * difference * w_context,
        f * difference,
        f * difference * w,
        f * difference,
    )


class GloVeTwin:
    """The parameters and their AdaGrad sums.

    Attributes:
        w, w_context: [V, D].
        b, b_context: [V].
        squares: name of a parameter -> the sums of its squared steps, from 1 on.
    """

    def __init__(
        self, w: Any, b: Any, w_context: Any, b_context: Any, *, learning_rate: float = 0.05,
        x_max: float = 100.0, alpha: float = 0.75,
    ) -> None:  # fmt: skip
        self.w, self.b = np.array(w, dtype=np.float64), np.array(b, dtype=np.float64)
        self.w_context, self.b_context = (np.array(a, dtype=np.float64) for a in (w_context, b_context))
        self.squares = {
            name: np.ones_like(getattr(self, name)) for name in ("w", "b", "w_context", "b_context")
        }
        self.learning_rate, self.x_max, self.alpha = learning_rate, x_max, alpha

    def step(self, i: int, j: int, x: float) -> float:
        """Train on one record and return its loss before the step."""
        f = weighting(x, self.x_max, self.alpha)
        loss, *gradients = loss_and_gradients(
            self.w[i], self.b[i], self.w_context[j], self.b_context[j], x, f
        )
        for name, row, gradient in zip(self.squares, (i, i, j, j), gradients, strict=True):
            self._descend(name, row, gradient)
        return float(loss)

    def _descend(self, name: str, row: int, gradient: Any) -> None:
        """Take a step of AdaGrad (Duchi et al. 2011) as in the authors' tool.

        The sums are of squares of the gradient times the learning rate, updated after the step.
        """
        step = self.learning_rate * gradient
        getattr(self, name)[row] -= step / np.sqrt(self.squares[name][row])
        self.squares[name][row] += step**2

    def train(self, records: Any) -> float:
        """Train on the records (i, j, x) in order and return the mean loss."""
        return float(np.mean([self.step(int(i), int(j), float(x)) for i, j, x in records]))
