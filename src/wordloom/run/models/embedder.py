"""Vectors of texts and of their tokens from within any model: encoders, causal models, recurrent ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wordloom.data.batches.masked import Marks
from wordloom.errors import ConfigError, DataError, DataTypeError, NonFiniteError, did_you_mean
from wordloom.models import context_limit, encodes
from wordloom.models.fast.encoder import FastEncoder
from wordloom.nn.evaluating import evaluating, widened
from wordloom.nn.recurrent import Recurrent
from wordloom.run.models.side_by_side import side_by_side
from wordloom.text.arguments import check_texts

__all__ = ["POOLINGS", "EmbedLedger", "Embedded", "Embedder", "Pooling", "TokenVectors"]

log = logging.getLogger(__name__)

Pooling: TypeAlias = Literal["mean", "sum", "max", "cls", "last"]
TooLong: TypeAlias = Literal["error", "cut", "window"]
Place: TypeAlias = Callable[[int], str]
POOLINGS = ("mean", "sum", "max", "cls", "last")
_TOO_LONG = ("error", "cut", "window")
_POOL_TEXTS = 1 << 12  # sorted by length together
_BATCH_TOKENS = 1 << 13  # of a forward pass, padding included
_CORE_TOKENS = 1 << 10  # ... of one core, whose cache keeps what lies between two layers
_NAMED = 5  # texts of which the ledger's lines say the number
_FAST_FROM = 1 << 12  # tokens for which it is worth laying out a model's weights anew

_Use: TypeAlias = Callable[[list[tuple[int, int]], Tensor, Tensor], None]


@dataclass
class EmbedLedger:
    """What became of texts.

    Attributes:
        texts, tokens: how many; tokens without the marks around a text.
        unknown: tokens that stand for what the tokenizer lacks.
        empty: texts, by number from 0, without a token.
        cut: texts, by number, whose end was left out, as asked, and the ``tokens_left_out``.
        windowed: texts, by number, that were read in several windows, as asked.
        places: where the texts stand that ``lines`` names, by number, as far as that was told.
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
        """Add a text to ``numbers``, one of the lists, and keep its place if ``lines`` will name it."""
        numbers.append(number)
        if place is not None and len(numbers) <= _NAMED:
            self.places[number] = place(number)

    def lines(self) -> list[str]:
        """The ledger as text, one fact per line."""
        lines = [f"{self.texts:,} texts, {self.tokens:,} tokens, {self.unknown:,} of them unknown"]
        for what, numbers in (
            ("without a token", self.empty),
            (f"cut, which left out {self.tokens_left_out:,} tokens", self.cut),
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
    """``vectors`` [N, D] float32 of N texts, and what became of them."""

    vectors: NDArray[np.float32]
    ledger: EmbedLedger


class TokenVectors(NamedTuple):
    """The T tokens of a text: ``ids`` [T], their spelling, and ``vectors`` [T, D] float32."""

    ids: NDArray[np.int64]
    tokens: list[str]
    vectors: NDArray[np.float32]


class Embedder:
    """Texts to vectors by ``model`` and ``tokenizer``.

    Args:
        pooling: of a text's tokens: their ``mean``, ``sum``, ``max``, or the vector of the first (``cls``, of
            an encoder) or the last.  An encoder's marks around the text take part, as in
            sentence-transformers.
        layer: after how many blocks; 0 is the embeddings, None the model's output.
        too_long: what a text is that the model cannot read at once: an ``error``, ``cut`` behind what fits,
            or read in ``window`` s that follow one another, whose tokens are pooled together.
        limit: tokens read at once, marks included; None: what the model allows.
        normalize: bring vectors of texts to length 1.

    Raises ConfigError for settings that are not allowed or not this model's.
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
        for name, given, allowed in (("pooling", pooling, POOLINGS), ("too_long", too_long, _TOO_LONG)):
            if given not in allowed:
                raise ConfigError(f"unknown {name} {given!r}; {did_you_mean(given, allowed)}")
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
        """Marks around a text."""
        return 2 if self.marks else 0

    def __call__(self, texts: Iterable[str], *, place: Place | None = None) -> Embedded:
        """The vectors of ``texts``; raises DataError for a text that is too long, if that is an error, which
        names it by ``place`` of its number, from 0."""
        ledger, found = EmbedLedger(), [np.empty((0, self.dim), np.float32)]
        for some in self.stream(texts, ledger, place=place):
            found.append(some)
        return Embedded(np.concatenate(found), ledger)

    @property
    def dim(self) -> int:
        """Components of a vector."""
        if self.layer is None and not self.bidirectional:
            config = self.model.config
            return int(getattr(config, "output_dim", config.dim))
        block = self.model.blocks[self.layer - 1] if self.layer else None
        return int(block.state_dims[0] if isinstance(block, Recurrent) else self.model.config.dim)

    def stream(
        self, texts: Iterable[str], ledger: EmbedLedger, *, place: Place | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """The vectors of some texts after another, [n, D], in order; ``ledger`` is kept as they come, and
        ``place`` is of a text's number there, from 0."""
        texts = check_texts(texts, error=DataTypeError)
        while some := list(islice(texts, _POOL_TEXTS)):
            pieces = self._pieces(some, ledger, place)
            pooled = _Pooled(len(some), self.pooling)
            self._forward(pieces, pooled.add)
            yield pooled.vectors(self.dim, normalize=self.normalize)

    def tokens(
        self, texts: Sequence[str], ledger: EmbedLedger | None = None, *, place: Place | None = None
    ) -> list[TokenVectors]:
        """The vectors of every token of every text, marks left out, at their own lengths; ``ledger`` as for
        :meth:`TextEncoder.embed_tokens <wordloom.run.TextEncoder.embed_tokens>`, ``place`` as for
        :meth:`stream`."""
        texts = list(check_texts(texts, error=DataTypeError))
        kept = EmbedLedger() if ledger is None else ledger
        pieces = self._pieces(texts, kept, place)
        if ledger is None and kept.cut:
            for line in kept.lines()[1:]:
                log.warning(line)
        parts: dict[int, list[tuple[int, NDArray[np.float32]]]] = {i: [] for i in range(len(texts))}
        inside = slice(1, -1) if self.marks else slice(None)

        def keep(owners: list[tuple[int, int]], x: Tensor, attend: Tensor) -> None:
            for row, (text, place) in enumerate(owners):
                n = int(attend[row].sum())
                vectors = x[row, :n].float().cpu().numpy()[inside]
                _check_finite(vectors)
                parts[text].append((place, vectors))

        self._forward(pieces, keep)
        ids: list[list[int]] = [[] for _ in texts]
        for text, _, piece in pieces:
            ids[text] += piece[inside].tolist()
        made = []
        for text in range(len(texts)):
            stacked = [
                np.empty((0, self.dim), np.float32),
                *(x for _, x in sorted(parts[text], key=itemgetter(0))),
            ]
            spelled = [self.tokenizer.id_to_token(index) for index in ids[text]]
            made.append(TokenVectors(np.array(ids[text], np.int64), spelled, np.concatenate(stacked)))
        return made

    # -- the parts ---------------------------------------------------------------------------------------

    def _pieces(
        self, texts: Sequence[str], ledger: EmbedLedger, place: Place | None
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Rows to read: the text's number, its place among that text's rows, and the tokens."""
        room = None if self.limit is None else self.limit - self._around
        pieces: list[tuple[int, int, NDArray[np.int64]]] = []
        for i, ids in enumerate(self.tokenizer.encode_batch(texts, specials="text")):
            number = ledger.texts + i
            ids = np.asarray(ids, np.int64)
            if not self.bidirectional and self.tokenizer.adds_bos:
                ids = np.concatenate([[self.tokenizer.bos_id], ids])
            if not len(ids):
                ledger.name(ledger.empty, number, place)
            if room is not None and len(ids) > room:
                if self.too_long == "error":
                    named = f"text {number + 1}" if place is None else place(number)
                    raise DataError(
                        f"{named} has {len(ids):,} tokens and the model reads {room:,} at once; "
                        "shorten it, or ask for too_long (--too-long) cut or window"
                    )
                if self.too_long == "cut":
                    ledger.name(ledger.cut, number, place)
                    ledger.tokens_left_out += len(ids) - room
                    ids = ids[:room]
                else:
                    ledger.name(ledger.windowed, number, place)
            ledger.tokens += len(ids)
            if self.tokenizer.unk_id is not None:
                ledger.unknown += int((ids == self.tokenizer.unk_id).sum())
            for nth, at in enumerate(range(0, max(1, len(ids)), room or max(1, len(ids)))):
                piece = ids[at : at + room] if room else ids
                if self.marks:
                    piece = np.concatenate([[self.marks.cls], piece, [self.marks.sep]])
                if len(piece):
                    pieces.append((i, nth, piece))
        ledger.texts += len(texts)
        return pieces

    def _forward(self, pieces: list[tuple[int, int, NDArray[np.int64]]], use: _Use) -> None:
        """``use`` (text, place) of each row, states [B, T, D] and attend [B, T] of batches of rows of like
        length: one after another, or by an encoder on a CPU, several at a time."""
        device = next(self.model.parameters()).device
        order = sorted(pieces, key=lambda piece: len(piece[2]))
        pad = (self.marks.pad if self.marks else self.tokenizer.pad_id) or 0
        room = _CORE_TOKENS if self.bidirectional and device.type == "cpu" else _BATCH_TOKENS
        batches = []
        while order:  # the longest first: what will not fit into memory shows at once
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
            use([(text, place) for text, place, _ in rows], x, attend)

        with evaluating(self.model):
            if self.bidirectional:
                side_by_side(self.model, read, batches)
            else:
                for rows in batches:
                    read(rows)

    def _hidden(self, tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        """([B, T], attend) -> [B, T, D] after the layer asked for, of so many ``tokens`` in all."""
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
        """Of a model that reads in one direction, where what follows a row changes nothing: it is not told of
        padding."""
        if self.layer is None:
            return self.model.hidden(tokens)
        with _watching(self.model, self.layer) as seen:
            self.model.hidden(tokens)
        return seen[0]


@contextmanager
def _watching(model: Any, layer: int) -> Iterator[list[Tensor]]:
    """A list that fills with what goes into the first block (layer 0), or comes out of the ``layer``-th."""
    seen: list[Tensor] = []

    def before(_: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append(given[0])

    def after(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        seen.append(made[0] if isinstance(made, tuple) else made)

    blocks: Sequence[nn.Module] = model.blocks
    hook = (
        blocks[0].register_forward_pre_hook(before)
        if layer == 0
        else blocks[layer - 1].register_forward_hook(after)
    )
    try:
        yield seen
    finally:
        hook.remove()


def _check_finite(vectors: NDArray[Any]) -> None:
    if not np.isfinite(vectors).all():
        raise NonFiniteError(
            "the model gives vectors that are not finite; its weights are damaged, or --dtype is too narrow "
            "for them"
        )


class _Pooled:
    """Vectors of texts from the states of their rows, of which a text may have several."""

    def __init__(self, n: int, pooling: Pooling) -> None:
        self.pooling = pooling
        self._made: list[list[tuple[int, NDArray[np.float64], int]]] = [[] for _ in range(n)]

    def add(self, owners: list[tuple[int, int]], x: Tensor, attend: Tensor) -> None:
        x = x.float()
        seen = attend[:, :, None]
        lengths = attend.sum(1)
        match self.pooling:
            case "mean" | "sum":
                made = widened(x.masked_fill(~seen, 0.0)).sum(1)
            case "max":
                made = x.masked_fill(~seen, -torch.inf).amax(1)
            case "cls":
                made = x[:, 0]
            case "last":
                made = x[torch.arange(len(x), device=x.device), lengths - 1]
        rows = made.cpu().double().numpy()
        for (text, place), row, n in zip(owners, rows, lengths.tolist(), strict=True):
            self._made[text].append((place, row, n))

    def vectors(self, dim: int, *, normalize: bool) -> NDArray[np.float32]:
        """[n, D]; zeros of a text without a token."""
        found = np.zeros((len(self._made), dim), np.float64)
        for i, made in enumerate(self._made):
            if not made:
                continue
            parts = [row for _, row, _ in sorted(made, key=itemgetter(0))]
            match self.pooling:
                case "mean":
                    found[i] = np.sum(parts, axis=0) / sum(n for _, _, n in made)
                case "sum":
                    found[i] = np.sum(parts, axis=0)
                case "max":
                    found[i] = np.max(parts, axis=0)
                case "cls":
                    found[i] = parts[0]
                case "last":
                    found[i] = parts[-1]
        _check_finite(found)
        if normalize:
            norms = np.linalg.norm(found, axis=1, keepdims=True)
            found = np.divide(found, norms, out=found, where=norms > 0)
        return found.astype(np.float32)
