"""Generation and scores of text: prompts to ids, ids to text, and stop strings across token boundaries.

A prompt is a str, or ids (a list, array or tensor), which need no tokenizer.  Without a tokenizer, generated
text is empty, and stop strings are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from wordloom.errors import GenerationError
from wordloom.generate.engine import FinishReason, steps
from wordloom.generate.prompts import token_ids
from wordloom.generate.sampling import Sampling, seed_of
from wordloom.generate.scoring import next_logprobs, score_ids
from wordloom.generate.speculation import NewDrafter

if TYPE_CHECKING:
    from wordloom.text import Specials, StreamDecoder, Tokenizer

Prompt = str | Sequence[int]


class Piece(NamedTuple):
    """The text that one token adds to a row: often a word, sometimes nothing yet."""

    row: int
    text: str
    id: int
    logprob: float
    finish_reason: FinishReason | None


class Completion(NamedTuple):
    """The continuation of one row: ``text`` without the stop string or id that ended it, ``ids`` with it."""

    row: int
    prompt: Prompt
    text: str
    ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float]
    seed: int


class Scored(NamedTuple):
    """A continuation and its log-probability (natural logarithm) after the prompt.

    ``continuation`` is None for a continuation given as ``ids``; ``tokens`` holds the text of each id.
    ``greedy`` is true if every token is the likeliest one, and of equally likely ones the lowest id.
    """

    continuation: str | None
    total: float
    per_token: list[float]
    ids: list[int]
    tokens: list[str]
    greedy: bool


class NextToken(NamedTuple):
    """A token that may come next; ``text`` is what it would add, or its name if that is half a character."""

    id: int
    text: str
    probability: float
    logprob: float


class StopWatch:
    """The text of a row, decoded id by id; text that may become a stop string is held back.

    Returned text is final.  The stop string that is complete first ends the row, and the longest of those
    that are complete at one character.
    """

    def __init__(self, decoder: StreamDecoder, stop: Sequence[str]) -> None:
        self.decoder = decoder
        self.stop = stop
        self.held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Return the text that this id makes final; set ``stopped`` if it completes a stop string."""
        return self._release(self.decoder.push(token), last=False)

    def flush(self) -> str:
        """Return the text that is held back, at the end of the row."""
        return self._release(self.decoder.flush(), last=True)

    def _release(self, new: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self.held + new
        found = [(start + len(stop), start) for stop in self.stop if (start := text.find(stop)) >= 0]
        self.stopped = bool(found)
        if found:
            end = min(found)[1]
        else:
            end = len(text) - (0 if last else max((_overlap(text, stop) for stop in self.stop), default=0))
        self.held = "" if found else text[end:]
        return text[:end]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of ``stop`` that ends ``text``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def prompt_ids(
    tokenizer: Tokenizer | None, prompt: Prompt, *, specials: Specials = "refuse", number: int = 0
) -> list[int]:
    """Return the ids of a prompt; a prompt of ids is not changed.

    An empty str is the beginning of a text: the bos token, or eos, which separates documents in GPT-style
    corpora.  ``number`` names the prompt in errors.

    Raises GenerationError for an empty str if the tokenizer has neither, and for text without a tokenizer.
    """
    if not isinstance(prompt, str):
        return token_ids(prompt, f"prompt {number}")
    if tokenizer is None:
        raise GenerationError("a prompt of text needs a tokenizer; give token ids")
    ids = tokenizer.prompt_ids(prompt, specials=specials)
    if ids:
        return list(ids)
    start = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    if start is None:
        raise GenerationError("an empty prompt needs a tokenizer with a bos or eos token; give some text")
    return [start]


class StreamOptions(TypedDict, total=False):
    """The options of :func:`stream`."""

    eos_ids: Iterable[int] | None
    seed: int | None
    first_row: int
    fit_new_tokens: bool
    specials: Specials
    use_cache: bool
    fast: bool
    speculate: NewDrafter | None


def stream(
    model: Any,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    *,
    eos_ids: Iterable[int] | None = None,
    seed: int | None = None,
    first_row: int = 0,
    fit_new_tokens: bool = False,
    specials: Specials = "refuse",
    use_cache: bool = True,
    fast: bool = True,
    speculate: NewDrafter | None = None,
) -> Iterator[Piece]:
    """Yield the text and ids of every row piece by piece, rows interleaved.

    Rows are numbered and seeded as in :func:`wordloom.generate.engine.steps`, whose errors these are.
    ``eos_ids`` defaults to the tokenizer's eos.  ``fit_new_tokens`` is that of
    :class:`~wordloom.generate.engine.RowOptions`.  Special tokens that the model draws are in the ids, not in
    the text.  ``specials`` decides about special tokens written in a prompt: an error, plain text, or tokens.
    """
    sampling = sampling or Sampling()
    if eos_ids is None:
        eos_ids = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
    eos_ids = tuple(eos_ids)
    silent = {*eos_ids, *sampling.stop_ids}
    ids = [
        prompt_ids(tokenizer, prompt, specials=specials, number=number)
        for number, prompt in enumerate(prompts)
    ]
    watches: dict[int, StopWatch] = {}
    new: dict[int, deque[str]] = {}  # the texts of tokens that were drawn and not yet given out

    def stopped(row: int, token: int) -> bool:
        new.setdefault(row, deque()).append(watches[row].push(token))
        return watches[row].stopped

    tokens = steps(
        model,
        ids,
        sampling,
        eos_ids=eos_ids,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        seed=seed,
        first_row=first_row,
        fit_new_tokens=fit_new_tokens,
        use_cache=use_cache,
        fast=fast,
        speculate=speculate,
        stopped=None if tokenizer is None else stopped,
    )
    if tokenizer is None:
        return (Piece(row, "", token, logprob, reason) for row, token, logprob, reason in tokens)
    for row in range(len(ids) * sampling.samples):  # only now: steps() has checked the ids
        decoder = tokenizer.stream_decoder(ids[row // sampling.samples], skip_special_tokens=True)
        watches[first_row + row] = StopWatch(decoder, sampling.stop)

    def pieces() -> Iterator[Piece]:
        for row, token, logprob, reason in tokens:
            # tokens that end a row are not decoded
            text = "" if token in silent else new[row].popleft()
            if reason is not None:
                text += watches[row].flush()
            yield Piece(row, text, token, logprob, reason)

    return pieces()


def complete(
    model: Any,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    **options: Unpack[StreamOptions],
) -> list[Completion]:
    """Continue each prompt; return ``len(prompts) * sampling.samples`` results, a prompt's samples together.

    Arguments and errors are those of :func:`stream`.
    """
    sampling = sampling or Sampling()
    options["seed"] = seed = seed_of(sampling, options.get("seed"))
    rows: dict[int, list[Piece]] = {}
    for piece in stream(model, tokenizer, prompts, sampling, **options):
        rows.setdefault(piece.row, []).append(piece)
    done = []
    for row, pieces in sorted(rows.items()):
        reason = pieces[-1].finish_reason
        assert reason is not None
        prompt = prompts[(row - options.get("first_row", 0)) // sampling.samples]
        text = "".join(piece.text for piece in pieces)
        ids, logprobs = [piece.id for piece in pieces], [piece.logprob for piece in pieces]
        done.append(Completion(row, prompt, text, ids, reason, logprobs, seed))
    return done


def generate_text(
    model: Any,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str],
    sampling: Sampling | None = None,
    **options: Unpack[StreamOptions],
) -> str | list[str]:
    """Return the continuation of ``prompt``, without the prompt: a string for one prompt and one sample.

    Several prompts or samples give a list, a prompt's samples together.  Options are those of :func:`stream`.
    """
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    texts = [completion.text for completion in complete(model, tokenizer, prompts, sampling, **options)]
    return texts[0] if isinstance(prompt, str) and len(texts) == 1 else texts


def stream_text(
    model: Any,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[str]:
    """Yield the continuation of one prompt in pieces, which add up to the result of :func:`generate_text`.

    Options are those of :func:`stream`.  Raises GenerationError for several samples, which would interleave.
    """
    pieces = _one_row(model, tokenizer, prompt, sampling, **options)
    return (piece.text for piece in pieces if piece.text)


def stream_ids(
    model: Any,
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    sampling: Sampling | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[int]:
    """Yield the ids that continue one prompt of ids as they are drawn: the ids of its :class:`Completion`.

    Options and errors are those of :func:`stream_text`.
    """
    return (piece.id for piece in _one_row(model, tokenizer, prompt, sampling, **options))


def _one_row(
    model: Any,
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    sampling: Sampling | None,
    **options: Unpack[StreamOptions],
) -> Iterator[Piece]:
    if sampling is not None and sampling.samples > 1:
        raise GenerationError(f"one sample streams, not {sampling.samples}; ask for one, or use generate()")
    return stream(model, tokenizer, [prompt], sampling, **options)


def continuation_ids(
    tokenizer: Tokenizer, prompt: str, continuation: str, *, specials: Specials = "refuse"
) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt and of the continuation, which together decode to both texts.

    Where the tokenizer would merge the end of the prompt with the beginning of the continuation, the
    prompt keeps the ids that it has alone, since a model is prompted with these.

    Raises GenerationError if no ids after the prompt's decode to the continuation.
    """
    given = prompt_ids(tokenizer, prompt, specials=specials)
    whole = list(tokenizer.prompt_ids(prompt + continuation, specials=specials))
    if whole[: len(given)] == given:
        return given, whole[len(given) :]
    alone = tokenizer.encode_ids(continuation, specials=specials)
    # after a line break a sentencepiece model adds no space of its own
    line_break = tokenizer.encode_ids("\n", specials=specials)
    inside = tokenizer.encode_ids("\n" + continuation, specials=specials)
    candidates = [list(alone)]
    if list(inside[: len(line_break)]) == list(line_break):
        candidates.append(list(inside[len(line_break) :]))
    for ids in candidates:
        decoder = tokenizer.stream_decoder(given)
        if "".join(map(decoder.push, ids)) + decoder.flush() == continuation or not tokenizer.lossless:
            return given, ids
    raise GenerationError(
        f"the tokenizer cannot part {continuation!r} from the end of the prompt {prompt[-20:]!r}; move the "
        "boundary, for instance a space at the end of the prompt to the beginning of the continuation"
    )


def score(
    model: Any,
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    continuations: Sequence[Any],
    *,
    specials: Specials = "refuse",
) -> list[Scored]:
    """Return the log-probability of each continuation after ``prompt``: in total and token by token.

    Continuations of a text are texts, and those of a list of ids are lists of ids.  An empty continuation
    has log-probability 0.  Raises GenerationError for other continuations, and the errors of
    :func:`score_ids` and :func:`continuation_ids`.
    """
    _check_continuations(prompt, continuations)
    given = prompt_ids(tokenizer, prompt, specials=specials)
    if not isinstance(prompt, str):
        parts = [token_ids(part, f"continuation {number}") for number, part in enumerate(continuations)]
    else:
        assert tokenizer is not None, "prompt_ids has refused"
        parts = [continuation_ids(tokenizer, prompt, text, specials=specials)[1] for text in continuations]
    texts = continuations if isinstance(prompt, str) else [None] * len(parts)
    results = score_ids(model, given, parts)
    return [
        Scored(text, sum(per_token), per_token, ids, _texts(tokenizer, given, ids), greedy)
        for text, ids, (per_token, greedy) in zip(texts, parts, results, strict=True)
    ]


def _check_continuations(prompt: Prompt, continuations: Sequence[Any]) -> None:
    text = isinstance(prompt, str)
    wrong = [part for part in continuations if isinstance(part, str) != text or isinstance(part, int)]
    if isinstance(continuations, str):
        wrong = [continuations]
    if wrong:
        wanted = (
            "text give a list of texts, such as [' yes']" if text else "ids give lists of ids, such as [[3]]"
        )
        raise GenerationError(f"after a prompt of {wanted}, not {wrong[0]!r}")


def next_tokens(
    model: Any, tokenizer: Tokenizer | None, prompt: Prompt, k: int = 10, *, specials: Specials = "refuse"
) -> list[NextToken]:
    """Return the ``k`` likeliest next tokens, best first, the lower id first among equals.

    Raises GenerationError when k is below 1 or above the vocabulary, or the prompt is too long.
    """
    prompt = prompt_ids(tokenizer, prompt, specials=specials)
    V = model.config.vocab_size if tokenizer is None else min(tokenizer.vocab_size, model.config.vocab_size)
    if not 1 <= k <= V:
        raise GenerationError(f"k is a whole number from 1 to the vocabulary's {V}, not {k}")
    logprobs = next_logprobs(model, prompt)
    best = logprobs[:V].sort(descending=True, stable=True).indices[:k].tolist()
    chosen = [(token, float(logprobs[token])) for token in best]
    return [
        NextToken(token, _texts(tokenizer, prompt, [token])[0], float(logprobs[token].exp()), logprob)
        for token, logprob in chosen
    ]


def _texts(tokenizer: Tokenizer | None, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    """Return the text that each id adds; its name in the vocabulary where it adds no text yet."""
    if tokenizer is None:
        return [""] * len(ids)
    decoder = tokenizer.stream_decoder(prompt)
    return [decoder.push(token) or str(tokenizer.id_to_token(token)) for token in ids]
