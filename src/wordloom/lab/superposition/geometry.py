"""Measures of how toy models arrange their features: norms, shared directions, dimensionality, polytopes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_NORM = 1e-12  # shorter directions count as this long
_EDGE = 0.2  # cosine from which on two features are in one polytope
_RANK = 0.1  # singular values below this share of the largest do not count as a dimension

#: The polytopes that the paper names, by their numbers of vertices and dimensions.
POLYTOPES = {
    (1, 1): "single",
    (2, 1): "antipodal pair",
    (3, 2): "triangle",
    (4, 3): "tetrahedron",
    (5, 2): "pentagon",
    (8, 3): "square antiprism",
}


class Polytope(NamedTuple):
    """Features that share directions with one another and with no other feature."""

    features: tuple[int, ...]
    dims: int


def norms(weight: Tensor) -> Tensor:
    """Return the length of each feature's direction: weight [.., m, n] -> [.., n].

    It is about 1 for a feature that the model represents and 0 for others.
    """
    return weight.norm(dim=-2)


def shared(weight: Tensor) -> Tensor:
    """Return how much other features project on each feature's direction: weight [.., m, n] -> [.., n].

    This is sum_{j != i} (W_i/|W_i| . W_j)^2.  It is 0 for a feature that is orthogonal to all others.
    """
    projections = _projections(weight)  # [.., n, n]
    return projections.sum(-1) - projections.diagonal(dim1=-2, dim2=-1)


def dimensionality(weight: Tensor) -> Tensor:
    """Return the dimensionality D_i of each feature, in [0, 1]: weight [.., m, n] -> [.., n].

    D_i = |W_i|^2 / sum_j (W_i/|W_i| . W_j)^2.  It is 1 for a feature with a dimension of its own, 1/2 in an
    antipodal pair, and 0 for a direction of length 0.  The sum over the features is at most the rank of W.
    """
    squares = norms(weight).square()
    total = _projections(weight).sum(-1)
    return torch.where(total > 0, squares / total, 0.0)


def polytopes(weight: Tensor, represented: Tensor) -> list[Polytope]:
    """Return the polytopes of one model: weight [m, n], represented [n], True for features to consider.

    Two features are connected if their directions are not orthogonal: the cosine is 0.2 or more in absolute
    value.  A polytope is a connected component of this graph.
    """
    from scipy.sparse.csgraph import connected_components

    indices = represented.nonzero()[:, 0]
    directions = _directions(weight)[:, indices]  # [m, k]
    edges = (directions.T @ directions).abs() >= _EDGE  # [k, k]
    count, labels = connected_components(edges.numpy(), directed=False)
    groups = [torch.from_numpy(labels == label) for label in range(count)]
    return [
        Polytope(tuple(indices[group].tolist()), _rank(weight[:, indices[group]]))
        for group in groups
        if bool(group.any())
    ]


def _rank(weight: Tensor) -> int:
    values = torch.linalg.svdvals(weight)
    return int((values >= _RANK * values[0]).sum())


def _directions(weight: Tensor) -> Tensor:
    """Return the unit vectors of the features [.., m, n]."""
    return weight / weight.norm(dim=-2, keepdim=True).clamp_min(_LEAST_NORM)


def _projections(weight: Tensor) -> Tensor:
    """Return (W_i/|W_i| . W_j)^2 in row i and column j [.., n, n]."""
    return (_directions(weight).transpose(-2, -1) @ weight).square()
