"""Loss, perplexity and bits per byte of a text, by strided windows.

What is counted, so that no choice flatters a model unseen:

- A document is read on its own: start token, its tokens, end token; ``joined``, all are one text, in which
  each is followed by its end token.  Every token is scored once, with at
  least ``window - stride`` tokens before it, except near the document's start.
- ``start``: what stands before the first token.  A tokenizer that begins prompts with a token (LLaMA's
  BOS) begins documents with it; else the end-of-text token stands there, as between documents in training.
  A tokenizer with neither leaves the first token without a prediction: it is left out of loss and
  perplexity, and costs log2(vocabulary) bits in bits per byte.  ``label``: the ``prefix`` of each document, a
  special token that is given, not scored, and no part of the text.
- ``end``: the end-of-text token after the document is predicted too, and its bits are paid for, unless
  ``end="none"``.
- Bits per byte divide the bits of the whole text, start to end, by the bytes of the raw text, so they are
  the length of a code for the text and compare across tokenizers.  They are undefined where the tokens do
  not give the text back (unknown tokens, lower-casing, lost white space): what is lost would cost nothing.
- Intervals are 95 % normal intervals over documents, or from fewer than 20 documents, over blocks of 256
  tokens, which knows nothing of how documents differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wordloom.errors import EvaluationError
from wordloom.evaluate.likelihood import BATCH_TOKENS, DTYPE_NAMES, Stretch, likelihoods
from wordloom.evaluate.reading import End, Reader, ReadText, Start, tokenizer_name
from wordloom.evaluate.score import Floats, Scores
from wordloom.evaluate.totals import Totals
from wordloom.models import context_limit

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.data.text.documents import Piece
    from wordloom.text import Specials, Tokenizer

__all__ = ["Window", "perplexity", "strided_windows"]

Progress = Callable[[float, int, float], None]


class Window(NamedTuple):
    """Inputs ``begin`` to ``end`` are read; the successors of inputs ``scored`` to ``end`` are scored."""

    begin: int
    end: int
    scored: int


def strided_windows(n: int, *, window: int, stride: int) -> Iterator[Window]:
    """Windows over ``n`` inputs that score every successor once, moving ``stride`` inputs at a time."""
    done = 0
    for begin in range(0, n, stride):
        end = min(begin + window, n)
        yield Window(begin, end, done)
        done = end
        if end == n:
            return


def perplexity(
    model: Any,
    tokenizer: Tokenizer,
    documents: Iterable[Document | Piece | str | bytes],
    *,
    window: int | None = None,
    stride: int | None = None,
    start: Start = "auto",
    end: End = "auto",
    per_word: bool = False,
    joined: bool = False,
    specials: Specials = "refuse",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """``loss`` (nats per token), ``perplexity`` and ``bits_per_byte`` of ``documents``; see the module.

    Args:
        model: a causal model (:class:`wordloom.models.CausalLM`).
        documents: read one at a time; each document's ids are held while it is scored.  Empty ones are left
            out, as :func:`wordloom.data.prepare` does, and counted in a note.
        window: tokens the model reads at once; None: its ``max_seq_len``; a recurrent model, which has none,
            reads each document from beginning to end.
        stride: tokens a window moves on; None: half the window.  Equal to the window it is cheapest, 1 gives
            every token the longest context.
        per_word: also ``word_perplexity``, over words between white space and, where the tokens keep line
            ends, one end-of-sentence word per line, as results on the Penn Treebank and WikiText are stated;
            and ``word_bits_per_byte``, over the bytes of the words and one of white space after each.
        joined: read what came before a document too, up to the window: as results on the Penn Treebank, whose
            documents are its lines, are stated.
        specials: special tokens' spellings inside the text; see :meth:`wordloom.text.Tokenizer.encode`.
        batch_size: windows per forward pass; None: about 8,192 tokens.
        progress: called after every window with the bytes, tokens and nats that it adds.

    Raises:
        EvaluationError: an impossible window or stride, a start or end token that does not exist (joined
            texts need both), a tokenizer of another model, or no text at all.
        TokenizerError: text the tokenizer refuses, with the document's name.
        NonFiniteError: the model gives a token no finite probability.
    """
    window, stride = _window(model, window, stride)
    reader = Reader(tokenizer, start=start, end=end, specials=specials)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise EvaluationError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {model.config.vocab_size}; "
            "give the tokenizer the model was trained with"
        )
    if batch_size is not None and batch_size < 1:
        raise EvaluationError(f"batch_size is a number of windows above 0, not {batch_size}")

    if joined and not (reader.before and reader.after):
        raise EvaluationError("joined texts need a token before the first and after each; leave out joined")

    def passages() -> Iterator[_Passage]:
        texts = reader.texts(documents)
        if not joined:
            yield from (_Passage([text]) for text in texts)
        elif whole := list(texts):
            yield _Passage(whole)

    def stretches() -> Iterator[tuple[_Passage, Stretch]]:
        for passage in passages():
            inputs, targets = passage.sequence[:-1], passage.sequence[1:]
            for w in strided_windows(len(inputs), window=window or len(inputs), stride=stride or len(inputs)):
                yield passage, Stretch(inputs[w.begin : w.end], targets[w.scored : w.end])
            if len(inputs) == 0:  # one token without a context: nothing to predict, and still to be counted
                yield passage, Stretch(inputs, targets)

    totals = Totals(vocab_size=model.config.vocab_size)
    scored = likelihoods(model, stretches(), batch_size=batch_size or max(1, BATCH_TOKENS // (window or 512)))
    for passage, group in groupby(scored, key=lambda item: item[0]):
        parts: list[Floats] = []
        for _, likelihood in group:
            parts.append(likelihood.nats)
            if progress is not None:
                share = len(likelihood.nats) / max(1, len(passage.sequence) - 1)
                progress(share * passage.bytes, len(likelihood.nats), float(likelihood.nats.sum()))
        for text, nats in passage.divided(np.concatenate(parts)):
            totals.add(text, nats)
    if reader.empty and not totals.tokens:
        raise EvaluationError("the text is empty; give a text of at least one byte")
    if not totals.tokens:
        raise EvaluationError("there is no token to score; give a text of at least two tokens")
    settings: dict[str, object] = {
        "text": reader.digest(),
        "tok": tokenizer_name(tokenizer),
        "window": window or "whole",
        "stride": stride or "whole",
        "start": reader.start_name,
        "end": reader.end_name,
        **({"documents": "joined"} if joined else {}),
        **({} if specials == "refuse" else {"specials": specials}),
        "dtype": DTYPE_NAMES.get(next(model.parameters()).dtype, "other"),
    }
    scores = totals.scores(settings, per_word=per_word)
    return replace(scores, notes=(*scores.notes, *reader.notes()))


class _Passage:
    """Texts that are read as one: what stands before the first, then each with what stands after it."""

    def __init__(self, texts: list[ReadText]) -> None:
        self.texts = texts
        self.sequence = np.concatenate([texts[0].sequence[:1], *(text.sequence[1:] for text in texts)])
        self.bytes = sum(text.bytes for text in texts)

    def divided(self, nats: Floats) -> Iterator[tuple[ReadText, Floats]]:
        """``nats`` of the whole sequence but its first token -> each text's own."""
        ends = np.cumsum([max(0, len(text.sequence) - 1) for text in self.texts])
        yield from zip(self.texts, np.split(nats, ends[:-1]), strict=True)


def _window(model: Any, window: int | None, stride: int | None) -> tuple[int | None, int | None]:
    """The two as given or by default; (None, None): a document passes whole."""
    longest = context_limit(model.config)
    window = longest if window is None else window
    if window is None:
        if stride is not None:
            raise EvaluationError(
                f"stride {stride} needs a window: a recurrent model reads texts whole; give both or neither"
            )
        return None, None
    if window < 1 or (longest is not None and window > longest):
        allowed = "1 or more" if longest is None else f"1 to its max_seq_len {longest}"
        raise EvaluationError(f"window {window} does not fit the model; allowed: {allowed}")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise EvaluationError(f"stride {stride} would leave tokens out; allowed: 1 to the window, {window}")
    return window, stride
