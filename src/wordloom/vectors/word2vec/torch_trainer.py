"""Training word2vec in torch, for a GPU: many windows at once, as batched products of matrices.

The words that subsampling keeps are cut into groups of L neighbouring windows, and a batch is B groups from
all over the portion.  A group reads the R = L + 2 window words it sees once, draws K negatives that stand
against each of its windows, and scores everything against everything in one product [R, D] x [D, L + K].  Of
the first L columns, the words in the middle, only the band of words that lie within each other's windows
counts; so most of that product is thrown away, which on a GPU costs less than to gather each window's rows.
A negative weighs negative / K, so that what a window is expected to learn is what it learns with
``negative`` of its own (sharing over a batch: Ji et al. 2016, arXiv:1604.04661).

All changes of a batch are worked out by the rows as they stood before it.  The rows met most often would
move by the sum of hundreds of steps that know nothing of each other, and overshoot: those steps are scaled
down, see :func:`damping`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad, softplus

from wordloom.data.batches.order import Purpose, keyed
from wordloom.errors import DeviceError, VectorError
from wordloom.vectors.word2vec.layout import Part
from wordloom.vectors.word2vec.sampling import alias_table, keep_probabilities
from wordloom.vectors.word2vec.trainer import (
    Figures,
    Schedule,
    Settings,
    TrainingCorpus,
    check_shape,
    scatter,
)

__all__ = ["Draw", "Shape", "TorchWordTrainer", "damping", "shape_of", "unsupported"]

_ROWS, _COLUMNS = 64, 128  # a GPU multiplies matrices in tiles of this size: groups are made to fill them
_GROUPS = 64  # groups of a batch at most
_LOAD = 2.5  # learning rate times the pairs that a row meets in a batch: beyond, its steps are scaled down
_DAMPED = 16.0  # times that at most: a small vocabulary has batches of fewer groups
_BATCHES = 5000  # of a whole run at least: a small corpus has batches of fewer groups
_LOOK = 8  # the loss is taken of one batch in this many
_BITS = 1 << 32


class Shape(NamedTuple):
    """How large the matrices are."""

    windows: int  # L, of a group
    rows: int  # R, words that they reach: L + 2 window
    negatives: int  # K, that they share
    groups: int  # B, of a batch


class Draw(NamedTuple):
    """A portion of the corpus with all that chance decides in it; G groups.

    Pieces, and with them windows, end at the edges of documents.  Places beyond the portion have the piece
    -1, and the windows there reach nothing.
    """

    words: Tensor  # [G, R] int64: those kept that a group sees; window i stands at place i + window
    pieces: Tensor  # [G, R] int64
    reach: Tensor  # [G, L] int64: words to either side
    rates: Tensor  # [G, L] float32: learning rates
    negatives: Tensor  # [G, K] int64
    kept: int  # words that subsampling left

    def every(self, step: int, first: int) -> Draw:
        """One group in ``step``, from the group ``first`` on."""
        s = slice(first, None, step)
        return Draw(self.words[s], self.pieces[s], self.reach[s], self.rates[s], self.negatives[s], self.kept)


class TorchWordTrainer(Schedule):
    """Trains input and output vectors of words on a torch device, portion by portion.

    It is :class:`wordloom.vectors.WordTrainer` for skip-gram and CBOW with negative sampling: the same
    learning rates, subsampling, windows and noise, drawn by other random numbers.  The same seed gives the
    same vectors on the same machine and build of torch, but on a GPU without ``settings.deterministic`` (rows
    are then added to in the order in which the GPU's threads come).
    """

    def __init__(
        self,
        corpus: TrainingCorpus,
        counts: NDArray[np.int64],
        settings: Settings,
        *,
        seed: int,
        device: torch.device | str,
    ) -> None:
        """Lays out the vectors as WordTrainer does, bit for bit.

        Args:
            corpus: ids below V.
            counts: [V], how often each word occurs.
            settings: see :class:`wordloom.recipe.vectors.VectorSettings`.
            seed: names the random numbers.
            device: where the vectors live, with everything that is drawn.

        Raises VectorError for hierarchical softmax, which has no kernel here, DeviceError where the vectors
        do not fit on the device.
        """
        super().__init__(corpus, settings, seed)
        s, V = settings, len(counts)
        if missing := unsupported(s):
            raise VectorError(f"{missing} is not trained on a GPU; set vectors.device=cpu")
        self._device = torch.device(device)
        self.device = self._device.type
        self.shape = shape_of(counts, s, len(corpus.shards))
        self._random = torch.Generator(self._device)
        keep = np.minimum(keep_probabilities(counts, s.sample) * _BITS, _BITS - 1)
        share, other = alias_table(counts.astype(np.float64) ** s.exponent)
        self._keep, self._share, self._other = (self._here(a.astype(np.int64)) for a in (keep, share, other))
        self._often = [self._here(often.astype(np.float32)) for often in _meetings(counts, s)]
        began = np.empty((V, s.dim), dtype=np.float32)
        scatter(began, s.dim, seed, s.dim)
        with _room_on(self._device):
            self._inputs, self._outputs = self._here(began), torch.zeros(V, s.dim, device=self._device)
        L, R, K, _ = self.shape
        apart = torch.arange(R)[:, None] - torch.arange(L) - s.window
        apart[apart == 0] = _BITS  # a word is not around itself
        self._apart = apart.abs().to(self._device)  # [R, L], from a place to the word in the middle
        self._goal = (torch.arange(L + K) < L).float().to(self._device)  # [L + K]

    def _here(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    @property
    def inputs(self) -> NDArray[np.float32]:
        """[V, dim], a copy where the vectors are not in the machine's memory."""
        array: NDArray[np.float32] = self._inputs.cpu().numpy()
        return array

    @property
    def outputs(self) -> NDArray[np.float32]:
        """[V, dim], likewise."""
        array: NDArray[np.float32] = self._outputs.cpu().numpy()
        return array

    @property
    def kernel(self) -> str:
        """One line: what runs, on which device, and whether it can be repeated."""
        s, (L, _, K, B) = self.settings, self.shape
        on = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else str(self._device)
        if self._device.type == "cpu" or (s.deterministic and self._device.type == "cuda"):
            mode = "the same seed gives the same vectors on this machine with this torch"
        else:
            mode = "rows are added to in no fixed order: not deterministic, two runs differ"
        return (
            f"{s.architecture}, {K} negatives shared by {L} windows, weighing {s.negative}, torch on {on} "
            f"(batches of {B * L} windows; {mode})"
        )

    def run(self) -> Figures:
        """Train on the next portion of jobs."""
        with _room_on(self._device):
            return self._run(self.portion(self.job))

    def _run(self, part: Part) -> Figures:
        draw = self.draw(part)
        G, B = len(draw.reach), self.shape.groups
        batches = -(-G // B)
        scales = self._scales(float(part.rates.max(initial=0.0)), -(-G // batches) if batches else 0)
        looks = []
        for b in range(batches):
            # Neighbours speak of the same things: groups of a batch come from all over the portion.
            found = self.step(draw.every(batches, b), scales, look=b % _LOOK == 0)
            if found is not None:
                looks.append(found)
        self.job += len(part.rates)
        finite = torch.isfinite(self._inputs).all() & torch.isfinite(self._outputs).all()
        if not finite:
            raise self.diverged()
        loss, pairs = torch.stack(looks).cpu().double().sum(dim=0).tolist() if looks else (0.0, 0.0)
        return Figures(len(part.ids), draw.kept, loss / pairs if pairs else None)

    # -- chance ------------------------------------------------------------------------------------------

    def draw(self, part: Part) -> Draw:
        """Which words of ``part`` are kept, how far their windows reach, and what stands against them."""
        s, (L, R, K, _) = self.settings, self.shape
        number = np.array([self.job], dtype=np.uint64)
        self._random.manual_seed(int(keyed(self.seed, Purpose.WORD_BATCH, number)[0] >> np.uint64(1)))
        ids = self._here(part.ids).long()
        ends = self._here(part.ends)
        places = torch.arange(len(ids), device=self._device)
        pieces = torch.searchsorted(ends, places, right=True)
        rates = self._here(part.rates)[torch.searchsorted(self._here(part.jobs[1:]), pieces, right=True)]
        kept = (self._keep[ids] >= self._bits(len(ids))).nonzero().squeeze(1)
        n = len(kept)
        G = -(-n // L)
        reach = torch.randint(1, s.window + 1, (n,), generator=self._random, device=self._device)
        ahead, behind = s.window, s.window + max(G, 1) * L - n
        return Draw(
            pad(ids[kept], (ahead, behind)).unfold(0, R, L)[:G],
            pad(pieces[kept], (ahead, behind), value=-1).unfold(0, R, L)[:G],
            pad(reach, (0, G * L - n)).view(G, L),
            pad(rates[kept], (0, G * L - n)).view(G, L),
            self._noise(G, K),
            n,
        )

    def _bits(self, *size: int) -> Tensor:
        """Random numbers of 32 bits."""
        return torch.randint(_BITS, size, generator=self._random, device=self._device)

    def _noise(self, *size: int) -> Tensor:
        """Words in proportion to count ** exponent."""
        slot = torch.randint(len(self._share), size, generator=self._random, device=self._device)
        return torch.where(self._bits(*size) < self._share[slot], slot, self._other[slot])

    # -- one batch ---------------------------------------------------------------------------------------

    def step(self, d: Draw, scales: tuple[Tensor, Tensor], *, look: bool = False) -> Tensor | None:
        """Train on the windows of some groups at once.

        Args:
            d: the groups.
            scales: [V], [V] what the changes of input and of output rows are multiplied by.
            look: also return [2]: the loss before, in nats, and the number of words predicted.
        """
        s, (L, _, K, _) = self.settings, self.shape
        centres = d.words[:, s.window : s.window + L]  # [B, L]
        same_piece = d.pieces[:, :, None] == d.pieces[:, None, s.window : s.window + L]
        near = ((self._apart <= d.reach[:, None, :]) & same_piece).float()  # [B, R, L]
        targets = torch.cat([centres, d.negatives], dim=1)  # [B, L + K]
        x, t = self._inputs[d.words], self._outputs[targets]  # [B, R, D], [B, L + K, D]
        joined = s.architecture == "cbow"
        spread, predicts = near, near
        if joined:  # what is around each window predicts together: [B, L, D]
            around = near.sum(dim=1)  # [B, L]
            part = near / around.clamp(min=1.0)[:, None, :]
            x = torch.bmm((part if s.mean else near).mT, x)
            spread = near if s.mean else part  # the whole step for a mean, as in word2vec.c
            predicts = torch.diag_embed((around > 0).float())  # [B, L, L]
        scores = torch.bmm(x, t.mT)  # [B, R or L, L + K]
        other = (centres[:, :, None] != d.negatives[:, None, :]).float() * (s.negative / K)  # [B, L, K]
        found = self._loss(scores, predicts, other) if look else None
        due = predicts * d.rates[:, None, :]
        g = torch.cat([due, torch.bmm(due, other)], dim=2) * (self._goal - torch.sigmoid(scores))
        change = torch.bmm(g, t)
        if joined:
            change = torch.bmm(spread, change)  # [B, R, D]
        moved = torch.bmm(g.mT, x)  # [B, L + K, D]
        self._add(self._inputs, d.words, change, scales[0])
        self._add(self._outputs, targets, moved, scales[1])
        return found

    def _loss(self, scores: Tensor, predicts: Tensor, other: Tensor) -> Tensor:
        """[2]: minus the log-likelihood of what is predicted and what is drawn against it, and how many."""
        weight = torch.cat([predicts, torch.bmm(predicts, other)], dim=2)
        signed = torch.where(self._goal > 0.5, -scores, scores)
        return torch.stack([(weight * softplus(signed)).sum(), predicts.sum()])

    def _add(self, table: Tensor, rows: Tensor, changes: Tensor, scale: Tensor) -> None:
        """Add ``changes`` [B, n, D] to ``rows`` [B, n] of ``table``, the same row many times."""
        index = rows.reshape(-1)
        values = (changes * scale[rows][:, :, None]).view(-1, changes.shape[2])
        if self.settings.deterministic and table.is_cuda:
            table.index_put_((index,), values, accumulate=True)  # sorts on CUDA, and adds in that order
        else:
            table.index_add_(0, index, values)  # in order on a CPU, atomically on CUDA

    def _scales(self, rate: float, groups: int) -> tuple[Tensor, Tensor]:
        windows = groups * self.shape.windows
        inputs, outputs = (damping(often * windows, rate) for often in self._often)
        return inputs, outputs

    # -- where it stopped --------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that goes on from here, as :meth:`wordloom.vectors.WordTrainer.state` has it."""
        return {"inputs": self.inputs, "outputs": self.outputs, "job": np.array([self.job])}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from ``state``, from whatever device; raises VectorError where it is of other vectors."""
        for name, ours in (("inputs", self._inputs), ("outputs", self._outputs)):
            check_shape(name, state[name], tuple(ours.shape))
            ours.copy_(torch.from_numpy(np.ascontiguousarray(state[name])))
        self.job = int(state["job"][0])


@contextmanager
def _room_on(device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise DeviceError(
            f"{device} has no room: {reason}; lower vectors.dim, or set vectors.device=cpu"
        ) from None


def unsupported(settings: Any) -> str | None:
    """What of ``settings`` has no kernel here, in words, or None."""
    algorithm = getattr(settings, "algorithm", "word2vec")
    if algorithm != "word2vec":
        return {"fasttext": "fastText with its n-grams", "glove": "GloVe"}.get(algorithm, algorithm)
    if not settings.negative or getattr(settings, "hierarchical_softmax", False):
        return "hierarchical softmax"
    return None


def damping(meetings: Tensor, rate: float) -> Tensor:
    """What a row's steps in one batch are multiplied by, for how many pairs it is expected to meet in it.

    A row that meets n pairs whose vectors have lengths near 1 and point the same way moves, by steps that
    do not see each other, up to rate n / 4 times as far as would be best, and swings ever wider beyond 2.
    So rate n is held to _LOAD; but never is a row given less than one whole step.
    """
    allowed = max(1.0, _LOAD / rate) if rate else float("inf")
    return torch.clamp(allowed / meetings.clamp(min=1e-30), max=1.0).float()


def _meetings(counts: NDArray[np.int64], s: Settings) -> tuple[NDArray[Any], NDArray[Any]]:
    """[V], [V]: pairs that an input and an output row are expected to be in, for each window."""
    trained, drawn = counts * keep_probabilities(counts, s.sample), counts.astype(np.float64) ** s.exponent
    trained, drawn = trained / trained.sum(), drawn / drawn.sum()
    around = s.window + 1.0  # words on average
    predictions = around if s.architecture == "skipgram" else 1.0
    return around * (1 + s.negative) * trained, predictions * (trained + s.negative * drawn)


def shape_of(counts: NDArray[np.int64], s: Settings, words: int) -> Shape:
    """Groups that fill a GPU's tiles, and as many of them in a batch as learning can bear.

    Steps that are scaled down are steps lost, so a batch is short where few words are met again and again,
    and where there are few ``words`` to learn from.
    """
    R = _ROWS * -(-(2 * s.window + _ROWS // 2) // _ROWS)
    L = R - 2 * s.window
    K = _COLUMNS * -(-(L + max(L, s.negative)) // _COLUMNS) - L
    met = max(often.max() for often in _meetings(counts, s))
    kept = (counts * keep_probabilities(counts, s.sample)).sum() / counts.sum()
    most = min(_DAMPED * max(1.0, _LOAD / s.alpha) / met, s.epochs * words * kept / _BATCHES)
    return Shape(L, R, K, int(np.clip(most / L, 1, _GROUPS)))
