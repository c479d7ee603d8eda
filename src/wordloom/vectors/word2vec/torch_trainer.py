"""Train word2vec with torch on a GPU: many windows at once, as batched matrix products.

The words after subsampling are divided into groups of L neighbouring windows; a batch has B groups from all
over the portion.  A group reads its R = L + 2 window words once, draws K negatives that all its windows
share, and computes all scores in one product [R, D] x [D, L + K].  The first L columns are the centre words;
training uses only the band of words within each other's windows.  Discarding the other products is faster on
a GPU than gathering the rows of each window.  A negative has the weight negative / K, so that the expected
gradient is that of ``negative`` samples for each window (Ji et al. 2016, arXiv:1604.04661, share samples over
a batch).

All updates of a batch are computed from the rows before it.  The sum of hundreds of such updates of a
frequent row would overshoot, so these updates are scaled down, see :func:`damping`.
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
from wordloom.vectors.word2vec.layout import Part, Tables
from wordloom.vectors.word2vec.sampling import alias_table, keep_probabilities
from wordloom.vectors.word2vec.trainer import PortionStats, Schedule, Settings, TrainingCorpus, fill_uniform

_ROWS, _COLUMNS = 64, 128  # tiles of matrix products on a GPU, which groups fill
_GROUPS = 64  # most groups of a batch
_LOAD = 2.5  # limit of learning rate * pairs of a row in a batch, above which updates are scaled down
_DAMPED = 16.0  # limit of the scaling: small vocabularies get smaller batches
_BATCHES = 5000  # fewest batches of a run: small corpora get smaller batches
_LOSS_EVERY = 8  # the loss is computed for one batch in this many
_BITS = 1 << 32


class Shape(NamedTuple):
    """The sizes of the matrices."""

    windows: int  # L, windows of a group
    rows: int  # R, words of a group: L + 2 window
    negatives: int  # K, negatives of a group
    groups: int  # B, groups of a batch


class Draw(NamedTuple):
    """G groups of a portion of the corpus, with all their random numbers.

    Pieces, and so windows, end at the boundaries of documents.  Padding has the piece -1 and empty windows.
    """

    words: Tensor  # [G, R] int64: words after subsampling; window i is at i + window
    pieces: Tensor  # [G, R] int64
    reach: Tensor  # [G, L] int64: words on either side
    rates: Tensor  # [G, L] float32: learning rates
    negatives: Tensor  # [G, K] int64
    kept: int  # words after subsampling

    def every(self, step: int, first: int) -> Draw:
        """Return every ``step``-th group from ``first`` on."""
        s = slice(first, None, step)
        return Draw(self.words[s], self.pieces[s], self.reach[s], self.rates[s], self.negatives[s], self.kept)


class TorchWordTrainer(Schedule):
    """Trains input and output vectors on a torch device, portion by portion.

    It corresponds to :class:`wordloom.vectors.WordTrainer` for skip-gram and CBOW with negative sampling,
    with other random numbers.  A seed gives equal vectors on one machine and build of torch, except on a GPU
    without ``settings.deterministic``, where the order of additions varies.
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
        """Initialise the vectors with the same bits as WordTrainer.

        Args:
            corpus: ids below V.
            counts: [V], the counts of words.
            device: the device of the vectors and samples.

        Raises:
            VectorError: the settings are not supported on a GPU, such as hierarchical softmax.
            DeviceError: the vectors do not fit on the device.
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
        self._keep, self._share, self._other = (
            self._on_device(a.astype(np.int64)) for a in (keep, share, other)
        )
        self._often = [self._on_device(often.astype(np.float32)) for often in _meetings(counts, s)]
        began = np.empty((V, s.dim), dtype=np.float32)
        fill_uniform(began, s.dim, seed, s.dim)
        with _room_on(self._device):
            outputs = torch.zeros(V, s.dim, device=self._device)
            self._tables = Tables(self._on_device(began), outputs)
        L, R, K, _ = self.shape
        distance = torch.arange(R)[:, None] - torch.arange(L) - s.window
        distance[distance == 0] = _BITS  # a word is not its own context
        self._distance = distance.abs().to(self._device)  # [R, L], from a word to the centre word
        self._goal = (torch.arange(L + K) < L).float().to(self._device)  # [L + K]

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _on_cpu(self, table: Tensor) -> NDArray[np.float32]:
        return table.cpu().numpy()

    @property
    def kernel(self) -> str:
        s, (L, _, K, B) = self.settings, self.shape
        on = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else str(self._device)
        if self._device.type == "cpu" or (s.deterministic and self._device.type == "cuda"):
            mode = "deterministic on this machine with this torch"
        else:
            mode = "not deterministic: the order of additions varies"
        return (
            f"{s.architecture}, {K} negatives shared by {L} windows, weighing {s.negative}, torch on {on} "
            f"(batches of {B * L} windows; {mode})"
        )

    def run(self) -> PortionStats:
        """Train on the next portion of jobs."""
        with _room_on(self._device):
            return self._run(self.portion(self.job))

    def _run(self, part: Part) -> PortionStats:
        draw = self.draw(part)
        G, B = len(draw.reach), self.shape.groups
        batches = -(-G // B)
        scales = self._scales(float(part.rates.max(initial=0.0)), -(-G // batches) if batches else 0)
        losses = []
        for b in range(batches):
            # Neighbouring groups are similar, so the groups of a batch come from all over the portion.
            loss = self.step(draw.every(batches, b), scales, with_loss=b % _LOSS_EVERY == 0)
            if loss is not None:
                losses.append(loss)
        self.job += len(part.rates)
        if not all(torch.isfinite(table).all() for table in self._tables):
            raise self.diverged()
        total, pairs = torch.stack(losses).cpu().double().sum(dim=0).tolist() if losses else (0.0, 0.0)
        return PortionStats(len(part.ids), draw.kept, total / pairs if pairs else None)

    # -- sampling ----------------------------------------------------------------------------------------

    def draw(self, part: Part) -> Draw:
        """Draw the subsampling, window sizes and negatives of ``part``."""
        s, (L, R, K, _) = self.settings, self.shape
        number = np.array([self.job], dtype=np.uint64)
        self._random.manual_seed(int(keyed(self.seed, Purpose.WORD_BATCH, number)[0] >> np.uint64(1)))
        ids = self._on_device(part.ids).long()
        ends = self._on_device(part.ends)
        places = torch.arange(len(ids), device=self._device)
        pieces = torch.searchsorted(ends, places, right=True)
        rates = self._on_device(part.rates)[
            torch.searchsorted(self._on_device(part.jobs[1:]), pieces, right=True)
        ]
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
        """Return random numbers of 32 bits."""
        return torch.randint(_BITS, size, generator=self._random, device=self._device)

    def _noise(self, *size: int) -> Tensor:
        """Return words sampled in proportion to count ** exponent."""
        slot = torch.randint(len(self._share), size, generator=self._random, device=self._device)
        return torch.where(self._bits(*size) < self._share[slot], slot, self._other[slot])

    # -- one batch ---------------------------------------------------------------------------------------

    def step(self, d: Draw, scales: tuple[Tensor, Tensor], *, with_loss: bool = False) -> Tensor | None:
        """Train on the windows of some groups at once.

        Args:
            d: the groups.
            scales: [V], [V], the factors of updates of input and output rows.
            with_loss: return [2]: the loss before the step, in nats, and the number of predictions.
        """
        s, (L, _, K, _) = self.settings, self.shape
        centres = d.words[:, s.window : s.window + L]  # [B, L]
        same_piece = d.pieces[:, :, None] == d.pieces[:, None, s.window : s.window + L]
        near = ((self._distance <= d.reach[:, None, :]) & same_piece).float()  # [B, R, L]
        targets = torch.cat([centres, d.negatives], dim=1)  # [B, L + K]
        x, t = self._tables.inputs[d.words], self._tables.outputs[targets]  # [B, R, D], [B, L + K, D]
        joined = s.architecture == "cbow"
        spread, predicts = near, near
        if joined:  # the context of each window is combined: [B, L, D]
            around = near.sum(dim=1)  # [B, L]
            part = near / around.clamp(min=1.0)[:, None, :]
            x = torch.bmm((part if s.mean else near).mT, x)
            spread = near if s.mean else part  # the full step for a mean, as in word2vec.c
            predicts = torch.diag_embed((around > 0).float())  # [B, L, L]
        scores = torch.bmm(x, t.mT)  # [B, R or L, L + K]
        other = (centres[:, :, None] != d.negatives[:, None, :]).float() * (s.negative / K)  # [B, L, K]
        loss = self._loss(scores, predicts, other) if with_loss else None
        due = predicts * d.rates[:, None, :]
        g = torch.cat([due, torch.bmm(due, other)], dim=2) * (self._goal - torch.sigmoid(scores))
        change = torch.bmm(g, t)
        if joined:
            change = torch.bmm(spread, change)  # [B, R, D]
        moved = torch.bmm(g.mT, x)  # [B, L + K, D]
        self._add(self._tables.inputs, d.words, change, scales[0])
        self._add(self._tables.outputs, targets, moved, scales[1])
        return loss

    def _loss(self, scores: Tensor, predicts: Tensor, other: Tensor) -> Tensor:
        """Return [2]: the negative log-likelihood of predictions and negatives, and the predictions."""
        weight = torch.cat([predicts, torch.bmm(predicts, other)], dim=2)
        signed = torch.where(self._goal > 0.5, -scores, scores)
        return torch.stack([(weight * softplus(signed)).sum(), predicts.sum()])

    def _add(self, table: Tensor, rows: Tensor, changes: Tensor, scale: Tensor) -> None:
        """Add ``changes`` [B, n, D] to ``rows`` [B, n] of ``table``, which may repeat."""
        index = rows.reshape(-1)
        values = (changes * scale[rows][:, :, None]).view(-1, changes.shape[2])
        if self.settings.deterministic and table.is_cuda:
            table.index_put_((index,), values, accumulate=True)  # sorts on CUDA, so the order is fixed
        else:
            table.index_add_(0, index, values)  # in order on a CPU, atomically on CUDA

    def _scales(self, rate: float, groups: int) -> tuple[Tensor, Tensor]:
        windows = groups * self.shape.windows
        inputs, outputs = (damping(often * windows, rate) for often in self._often)
        return inputs, outputs


@contextmanager
def _room_on(device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise DeviceError(
            f"{device} is out of memory: {reason}; lower vectors.dim, or set vectors.device=cpu"
        ) from None


def unsupported(settings: Any) -> str | None:
    """Return the name of the setting that is not supported on a GPU, or None."""
    algorithm = getattr(settings, "algorithm", "word2vec")
    if algorithm != "word2vec":
        return {"fasttext": "fastText with its n-grams", "glove": "GloVe"}.get(algorithm, algorithm)
    if not settings.negative or getattr(settings, "hierarchical_softmax", False):
        return "hierarchical softmax"
    return None


def damping(meetings: Tensor, rate: float) -> Tensor:
    """Return the factors of rows' updates in a batch, for the expected number of pairs of each row.

    If n pairs have vectors of length near 1 in the same direction, their summed updates go up to rate n / 4
    times as far as the optimum, and diverge if this exceeds 2.  So rate n is limited to _LOAD, but the sum is
    never less than one full update.
    """
    allowed = max(1.0, _LOAD / rate) if rate else float("inf")
    return torch.clamp(allowed / meetings.clamp(min=1e-30), max=1.0).float()


def _meetings(counts: NDArray[np.int64], s: Settings) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return [V], [V]: the expected pairs of each input and output row in a window."""
    trained, drawn = counts * keep_probabilities(counts, s.sample), counts.astype(np.float64) ** s.exponent
    trained, drawn = trained / trained.sum(), drawn / drawn.sum()
    around = s.window + 1.0  # words of a window on average
    predictions = around if s.architecture == "skipgram" else 1.0
    return around * (1 + s.negative) * trained, predictions * (trained + s.negative * drawn)


def shape_of(counts: NDArray[np.int64], s: Settings, words: int) -> Shape:
    """Return groups that fill the GPU's tiles, and batches as large as training tolerates.

    Scaling updates down slows training, so batches are smaller for small vocabularies and for few ``words``.
    """
    R = _ROWS * -(-(2 * s.window + _ROWS // 2) // _ROWS)
    L = R - 2 * s.window
    K = _COLUMNS * -(-(L + max(L, s.negative)) // _COLUMNS) - L
    met = max(often.max() for often in _meetings(counts, s))
    kept = (counts * keep_probabilities(counts, s.sample)).sum() / counts.sum()
    most = min(_DAMPED * max(1.0, _LOAD / s.alpha) / met, s.epochs * words * kept / _BATCHES)
    return Shape(L, R, K, int(np.clip(most / L, 1, _GROUPS)))
