"""Embed texts and their tokens by any layer of an encoder, a causal model or a recurrent model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.masked import Marks
from wordloom.errors import ConfigError, DataError, DataTypeError, NonFiniteError, did_you_mean
from wordloom.models import context_limit, encodes
from wordloom.models.fast_encoder import FastEncoder
from wordloom.nn.evaluating import evaluating, widened
from wordloom.nn.recurrent import Recurrent
from wordloom.run.models.side_by_side import side_by_side
from wordloom.run.models.text_stream import batches_of
from wordloom.text.arguments import check_texts

log = logging.getLogger(__name__)

Pooling: TypeAlias = Literal["mean", "sum", "max", "cls", "last"]
TooLong: TypeAlias = Literal["error", "cut", "window"]
Place: TypeAlias = Callable[[int], str]
POOLINGS = ("mean", "sum", "max", "cls", "last")
_TOO_LONG = ("error", "cut", "window")
_POOL_TEXTS = 1 << 12  # texts that are sorted by length together
_BATCH_TOKENS = 1 << 13  # tokens of a forward pass, with padding
_CORE_TOKENS = 1 << 10  # tokens on one core, whose cache then holds the activations between two layers
_NAMED = 5  # texts that a line of the ledger names
_FAST_FROM = 1 << 12  # tokens from which converting the weights for the fast encoder pays

_Use: TypeAlias = Callable[[list[tuple[int, int]], Tensor, Tensor], None]


@dataclass
class EmbedLedger:
    """A report on embedded texts, which it names by number from 0.

    Attributes:
        texts, tokens: how many; special tokens before and after a text are not counted.
        unknown: how many of the tokens are unknown.
        empty: the texts without a token.
        cut: the truncated texts, which lost ``tokens_left_out`` tokens.
        windowed: the texts that were read in several windows.
        places: the known positions of the texts that :meth:`lines` names.
    """

    texts: int = 0
    tokens: int = 0
    unknown: int = 0
    tokens_left_out: int = 0
    empty: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    windowed: list[int] = field(default_factory=list)
    places: dict[int, str] = field(default_factory=dict)

    def name(self, numbers: list[int], number: int, place: Place | None) -> None:
        """Add a text to ``numbers``, one of the lists, and keep its position if ``lines`` will name it."""
        numbers.append(number)
        if place is not None and len(numbers) <= _NAMED:
            self.places[number] = place(number)

    def lines(self) -> list[str]:
        """Return the report, one fact a line."""
        lines = [f"{self.texts:,} texts, {self.tokens:,} tokens, {self.unknown:,} of them unknown"]
        for what, numbers in (
            ("without a token", self.empty),
            (f"truncated, which dropped {self.tokens_left_out:,} tokens", self.cut),
            ("read in several windows", self.windowed),
        ):
            if numbers:
                shown = ", ".join(
                    f"{number + 1:,}" + (f" ({self.places[number]})" if number in self.places else "")
                    for number in numbers[:_NAMED]
                )
                more = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
                lines.append(f"{len(numbers):,} {what}: text {shown}{more}")
        return lines


class Embedded(NamedTuple):
    """The vectors of N texts, [N, D] float32, and the report on the texts."""

    vectors: NDArray[np.float32]
    ledger: EmbedLedger


class TokenVectors(NamedTuple):
    """The T tokens of a text: ``ids`` [T], their spelling, and ``vectors`` [T, D] float32."""

    ids: NDArray[np.int64]
    tokens: list[str]
    vectors: NDArray[np.float32]


class Embedder:
    """Turns texts into vectors by ``model`` and ``tokenizer``.

    Args:
        pooling: the vector of a text: the ``mean``, ``sum`` or ``max`` of its tokens' vectors, or that of the
            first token (``cls``, for encoders) or the ``last``. The special tokens that an encoder adds take
            part, as in sentence-transformers.
        layer: how many blocks to apply; 0 gives the embeddings, None the model's output.
        too_long: what happens to a text with more than ``limit`` tokens: an ``error``, or truncation
            (``cut``), or successive windows (``window``), whose tokens are pooled together.
        limit: how many tokens to read at once, with special tokens; None: as many as the model reads.
        normalize: scale the vectors of texts to length 1.

    Raises ConfigError for a setting that is not allowed, or not for this model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        pooling: Pooling = "mean",
        layer: int | None = None,
        too_long: TooLong = "error",
        limit: int | None = None,
        normalize: bool = False,
    ) -> None:
        for name, value, allowed in (("pooling", pooling, POOLINGS), ("too_long", too_long, _TOO_LONG)):
            if value not in allowed:
                raise ConfigError(f"unknown {name} {value!r}; {did_you_mean(value, allowed)}")
        self.model, self.tokenizer, self.pooling, self.layer = model, tokenizer, pooling, layer
        self.too_long, self.normalize = too_long, normalize
        self._fast: FastEncoder | None = None
        self.bidirectional = encodes(model.config)
        self.marks = Marks.of(tokenizer) if self.bidirectional else None
        if pooling == "cls" and not self.bidirectional:
            raise ConfigError(
                "pooling 'cls' is the first token of an encoder; of this model take last or mean"
            )
        n_layers = len(model.blocks)
        if layer is not None and not 0 <= layer <= n_layers:
            raise ConfigError(f"layer {layer} is out of range: 0 (embeddings) to {n_layers}")
        longest = context_limit(model.config)
        self.limit = longest if limit is None else limit if longest is None else min(limit, longest)
        if self.limit is not None and self.limit <= self._around:
            raise ConfigError(
                f"limit {self.limit} leaves no room for a token; give {self._around + 1} or more"
            )

    @property
    def _around(self) -> int:
        """The number of special tokens around a text."""
        return 2 if self.marks else 0

    @property
    def _begins(self) -> bool:
        """Whether a text is read after a start token, as a causal model's tokenizer may ask."""
        return not self.bidirectional and bool(self.tokenizer.adds_bos)

    def __call__(self, texts: Iterable[str], *, place: Place | None = None) -> Embedded:
        """Return the vectors of ``texts``.

        Raises DataError for a text that is too long, unless ``too_long`` allows it; ``place`` names a text by
        its number, from 0, in an error.
        """
        ledger = EmbedLedger()
        empty = np.empty((0, self.dim), np.float32)
        return Embedded(np.concatenate([empty, *self.stream(texts, ledger, place=place)]), ledger)

    def embed_ids(self, rows: Iterable[Sequence[int]], *, place: Place | None = None) -> Embedded:
        """Return the vectors of texts that are given as token ids, without the special tokens around a text.

        Raises DataError for a text that is too long, unless ``too_long`` allows it, and for an unknown id.
        """
        ids, V = [np.asarray(row, np.int64) for row in rows], int(self.model.config.vocab_size)
        for number, row in enumerate(ids):
            if len(row) and not 0 <= row.min() <= row.max() < V:
                name = f"text {number + 1}" if place is None else place(number)
                raise DataError(
                    f"{name} has an id outside the vocabulary of {V:,}; give ids from 0 to {V - 1:,}"
                )
        ledger = EmbedLedger()
        return Embedded(self._vectors(ids, ledger, place), ledger)

    @property
    def dim(self) -> int:
        """The size of a vector."""
        if self.layer is None and not self.bidirectional:
            config = self.model.config
            return int(getattr(config, "output_dim", config.dim))
        block = self.model.blocks[self.layer - 1] if self.layer else None
        return int(block.state_dims[0] if isinstance(block, Recurrent) else self.model.config.dim)

    def stream(
        self, texts: Iterable[str], ledger: EmbedLedger, *, place: Place | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of some texts at a time, [n, D], in order, and add the texts to ``ledger``.

        ``place`` names a text by its number in ``ledger``, from 0.
        """
        for batch in batches_of(check_texts(texts, error=DataTypeError), _POOL_TEXTS):
            yield self._vectors(self._encoded(batch), ledger, place)

    def _vectors(
        self, rows: Sequence[Sequence[int] | NDArray[np.int64]], ledger: EmbedLedger, place: Place | None
    ) -> NDArray[np.float32]:
        """Return the vectors [n, D] of texts that are given as token ids."""
        pieces = self._pieces(rows, ledger, place)
        pooled = _Pooled(len(rows), self.pooling)
        self._forward(pieces, pooled.add)
        return pooled.vectors(self.dim, normalize=self.normalize)

    def tokens(
        self, texts: Sequence[str], ledger: EmbedLedger | None = None, *, place: Place | None = None
    ) -> list[TokenVectors]:
        """Return the vectors of the tokens of each text, without special tokens.

        The texts are added to ``ledger``; without one, the log reports the truncated texts.
        """
        texts = list(check_texts(texts, error=DataTypeError))
        report = EmbedLedger() if ledger is None else ledger
        pieces = self._pieces(self._encoded(texts), report, place)
        if ledger is None and report.cut:
            for line in report.lines()[1:]:
                log.warning(line)
        parts: list[dict[int, NDArray[np.float32]]] = [
            {-1: np.empty((0, self.dim), np.float32)} for _ in texts
        ]

        def inside(nth: int) -> slice:
            """Return the places of the text in its window ``nth``."""
            return slice(1, -1) if self.marks else slice(int(self._begins and nth == 0), None)

        def keep(owners: list[tuple[int, int]], x: Tensor, attend: Tensor) -> None:
            for row, (text, nth) in enumerate(owners):
                vectors = x[row, : int(attend[row].sum())].float().cpu().numpy()[inside(nth)]  # [n, D]
                _check_finite(vectors)
                parts[text][nth] = vectors

        self._forward(pieces, keep)
        ids: list[list[int]] = [[] for _ in texts]
        for text, nth, piece in pieces:
            ids[text] += piece[inside(nth)].tolist()
        return [
            TokenVectors(
                np.array(row, np.int64),
                [self.tokenizer.id_to_token(index) for index in row],
                np.concatenate([vectors for _, vectors in sorted(windows.items())]),
            )
            for row, windows in zip(ids, parts, strict=True)
        ]

    # -- the parts ---------------------------------------------------------------------------------------

    def _encoded(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        ids: Sequence[Sequence[int]] = self.tokenizer.encode_batch(texts, specials="text")
        return ids

    def _pieces(
        self, rows: Sequence[Sequence[int] | NDArray[np.int64]], ledger: EmbedLedger, place: Place | None
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Return the rows to read: the text's number, the row's number in that text, and the tokens.

        ``rows`` are the ids of each text.
        """
        room = None if self.limit is None else self.limit - self._around
        pieces: list[tuple[int, int, NDArray[np.int64]]] = []
        for i, row in enumerate(rows):
            number = ledger.texts + i
            ids = np.asarray(row, np.int64)
            if not len(ids):
                ledger.name(ledger.empty, number, place)
            if self._begins:
                ids = np.concatenate([[self.tokenizer.bos_id], ids])
            if room is not None and len(ids) > room:
                if self.too_long == "error":
                    name = f"text {number + 1}" if place is None else place(number)
                    raise DataError(
                        f"{name} has {len(ids):,} tokens and the model reads {room:,} at once; "
                        "shorten it, or ask for too_long (--too-long) cut or window"
                    )
                if self.too_long == "cut":
                    ledger.name(ledger.cut, number, place)
                    ledger.tokens_left_out += len(ids) - room
                    ids = ids[:room]
                else:
                    ledger.name(ledger.windowed, number, place)
            ledger.tokens += len(ids) - self._begins
            if self.tokenizer.unk_id is not None:
                ledger.unknown += int((ids == self.tokenizer.unk_id).sum())
            for nth, at in enumerate(range(0, max(1, len(ids)), room or max(1, len(ids)))):
                piece = ids[at : at + room] if room else ids
                if self.marks:
                    piece = np.concatenate([[self.marks.cls], piece, [self.marks.sep]])
                if len(piece):
                    pieces.append((i, nth, piece))
        ledger.texts += len(rows)
        return pieces

    def _forward(self, pieces: list[tuple[int, int, NDArray[np.int64]]], use: _Use) -> None:
        """Call ``use`` for batches of rows of similar length: owners, states [B, T, D] and attend [B, T].

        An owner is the numbers of a text and of the row in it. On a CPU, an encoder runs batches in parallel.
        """
        device = next(self.model.parameters()).device
        order = sorted(pieces, key=lambda piece: len(piece[2]))
        pad = (self.marks.pad if self.marks else self.tokenizer.pad_id) or 0
        room = _CORE_TOKENS if self.bidirectional and device.type == "cpu" else _BATCH_TOKENS
        batches = []
        while order:  # the longest first, so that a lack of memory shows at once
            n = max(1, room // len(order[-1][2]))
            batches.append(order[-n:])
            order = order[:-n]
        hidden = self._hidden(sum(len(piece) for _, _, piece in pieces))

        @torch.inference_mode()
        def read(rows: list[tuple[int, int, NDArray[np.int64]]]) -> None:
            lengths = np.array([len(piece) for _, _, piece in rows])
            tokens = np.full((len(rows), lengths.max()), pad, np.int64)
            for row, (_, _, piece) in enumerate(rows):
                tokens[row, : len(piece)] = piece
            attend = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None]).to(device)
            x = hidden(torch.from_numpy(tokens).to(device), attend)
            use([(text, nth) for text, nth, _ in rows], x, attend)

        with evaluating(self.model):
            if self.bidirectional:
                side_by_side(self.model, read, batches)
            else:
                for rows in batches:
                    read(rows)

    def _hidden(self, tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the function ([B, T], attend) -> [B, T, D]; there will be ``tokens`` tokens in all."""
        if not self.bidirectional:
            return self._states
        reader = self.model
        if tokens >= _FAST_FROM and FastEncoder.takes(self.model):
            if self._fast is None or not self._fast.follows(self.model):
                self._fast = FastEncoder(self.model)
            reader = self._fast
        return lambda tokens, attend: reader.hidden(
            tokens, attend=None if bool(attend.all()) else attend, n_layers=self.layer
        )

    def _states(self, tokens: Tensor, attend: Tensor) -> Tensor:
        """Return the states of a causal model, which padding behind a row does not change."""
        if self.layer is None:
            return self.model.hidden(tokens)
        states: list[Any] = []
        if self.layer == 0:
            block = self.model.blocks[0]
            hook = block.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        else:
            block = self.model.blocks[self.layer - 1]
            hook = block.register_forward_hook(lambda _, __, output: states.append(output))
        try:
            self.model.hidden(tokens)
        finally:
            hook.remove()
        return states[0][0] if isinstance(states[0], tuple) else states[0]


def _check_finite(vectors: NDArray[Any]) -> None:
    if not np.isfinite(vectors).all():
        raise NonFiniteError(
            "the model gives vectors that are not finite; its weights are damaged, or --dtype is too narrow "
            "for them"
        )


class _Pooled:
    """Pools the states of rows into the vectors of ``n`` texts; a text may have several rows."""

    def __init__(self, n: int, pooling: Pooling) -> None:
        self.pooling = pooling
        self._rows: list[list[tuple[int, NDArray[np.float64], int]]] = [[] for _ in range(n)]

    def add(self, owners: list[tuple[int, int]], x: Tensor, attend: Tensor) -> None:
        x = x.float()
        padding = ~attend[:, :, None]  # [B, T, 1]
        lengths = attend.sum(1)  # [B]
        match self.pooling:
            case "mean" | "sum":
                pooled = widened(x.masked_fill(padding, 0.0)).sum(1)  # [B, D]
            case "max":
                pooled = x.masked_fill(padding, -torch.inf).amax(1)  # [B, D]
            case "cls":
                pooled = x[:, 0]  # [B, D]
            case "last":
                pooled = x[torch.arange(len(x), device=x.device), lengths - 1]  # [B, D]
        rows = pooled.cpu().double().numpy()
        for (text, nth), row, n in zip(owners, rows, lengths.tolist(), strict=True):
            self._rows[text].append((nth, row, n))

    def vectors(self, dim: int, *, normalize: bool) -> NDArray[np.float32]:
        """Return the vectors [n, D]; the vector of a text without a token is 0."""
        vectors = np.zeros((len(self._rows), dim), np.float64)
        for i, rows in enumerate(self._rows):
            if not rows:
                continue
            parts = [row for _, row, _ in sorted(rows, key=itemgetter(0))]
            if self.pooling in ("cls", "last"):
                vectors[i] = parts[0 if self.pooling == "cls" else -1]
            else:
                vectors[i] = np.max(parts, axis=0) if self.pooling == "max" else np.sum(parts, axis=0)
            if self.pooling == "mean":
                vectors[i] /= sum(n for _, _, n in rows)
        _check_finite(vectors)
        if normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, norms, out=vectors, where=norms > 0)
        return vectors.astype(np.float32)
