"""A trained sequence-to-sequence model from its folder, and what one does with it."""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from wordloom.data.text.sentences import sentences
from wordloom.errors import CheckpointError, DataError, DataTypeError, GenerationError, did_you_mean
from wordloom.generate import Conditioned, Generation, Hypothesis, Sampling, beam_search, generate
from wordloom.generate.sampling import new_seed
from wordloom.models import Memory, context_limit
from wordloom.nn.evaluating import evaluating
from wordloom.run.models.side_by_side import side_by_side
from wordloom.run.models.text_stream import available_batches, batches_of
from wordloom.run.models.tokenizers import ReadsText, required_tokenizer
from wordloom.text import Tokenizer
from wordloom.text.arguments import check_texts
from wordloom.weights import save_model
from wordloom.weights.configs import format_of

__all__ = ["Overlong", "Translation", "Translator"]

_POOL = 16  # batches of texts sorted by length together: little is padded, and little is held

Overlong: TypeAlias = Literal["error", "split"]
OVERLONG = ("error", "split")
Row: TypeAlias = list[int]
Place: TypeAlias = Callable[[int], str]  # what a text is called in an error, by its number from 1


def _numbered(number: int) -> str:
    return f"text {number}"


class Translation(NamedTuple):
    """One text that a source became.

    ``score`` is what hypotheses are compared by: the log-probability, in nats, over ``length **
    length_penalty``, the length in tokens with the end; 0 for the empty translation of an empty text.
    """

    text: str
    score: float

    @property
    def line(self) -> str:
        """The text in one line: a space stands for every line break in it."""
        return " ".join(self.text.splitlines())


class _Part(NamedTuple):
    """A text, or a stretch of one, as it is read; ``number`` is its own, and for a whole text that of the
    text from 0."""

    row: Row
    number: int


Write: TypeAlias = Callable[[Sequence[_Part]], list[list[Hypothesis]]]
WriteAll: TypeAlias = Callable[[list[list[_Part]]], list[list[list[Hypothesis]]]]


@dataclass(kw_only=True)
class Translator(ReadsText):
    """A :class:`wordloom.models.SequenceToSequence` and its tokenizers, from :func:`load_translator`.

    ``tokenizer`` is that of what is written; ``source_tokenizer`` of what is read, often the same object.
    ``source_eos_id`` ends sources and ``eos_id`` translations, which ``start_id`` begins: padding, as Marian
    has it, or what the folder says.  Sources begin with ``source_start_id``, None: with their own tokens.
    ``forced_eos_id`` takes the last place of what reaches its limit; None where the folder forces no end.
    Where the folder has no tokenizer, both are None and the ids are those in config.json, or -1.
    ``generation_defaults`` are the settings in generation_config.json, which :meth:`save_pretrained` keeps.
    """

    model: Any
    tokenizer: Tokenizer | None
    source_tokenizer: Tokenizer | None
    config: Any
    source_eos_id: int
    eos_id: int
    pad_id: int
    start_id: int
    source_start_id: int | None = None
    forced_eos_id: int | None = None
    folder: Path | None = None
    generation_defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def separate(self) -> bool:
        """Whether sources have a vocabulary of their own."""
        return self.source_tokenizer is not self.tokenizer

    @property
    def text_source_tokenizer(self) -> Tokenizer:
        """The tokenizer of sources; raises CheckpointError where the folder has none."""
        return required_tokenizer(self.source_tokenizer, self.folder)

    @property
    def _vocab_size(self) -> int:
        size: int = self.config.vocab_size if self.tokenizer is None else self.tokenizer.vocab_size
        return size

    @property
    def silent_ids(self) -> list[int]:
        """Tokens that no translation holds: padding, and what begins one."""
        return sorted({self.pad_id, self.start_id} - {self.eos_id})

    def translate(
        self,
        texts: Iterable[str],
        *,
        beams: int = 5,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        max_new_tokens: int | None = None,
        n_best: int = 1,
        sampling: Sampling | None = None,
        overlong: Overlong = "error",
        batch_size: int = 32,
        read_ahead: int | None = None,
        live: bool = False,
        place: Place = _numbered,
    ) -> Iterator[list[Translation]]:
        """The ``n_best`` translations of each text, the best first, in the order of the texts.

        A text of nothing but white space becomes ``n_best`` empty ones; others become fewer where no more
        were found.  ``beams`` 1 is greedy; the settings to ``n_best`` are those of
        :func:`~wordloom.generate.beam_search`.

        Args:
            sampling: draw ``sampling.samples`` translations of each text in place of a search, whose settings
                are then left alone.  What a text becomes depends on the seed and on its number.
            overlong: a text of more tokens than the model takes is an ``"error"``, raised behind the texts
                before it, or ``"split"``: cut behind its sentences, one that is still too long in halves
                between words, a word between tokens; their best translations stand with spaces between.
            read_ahead: texts taken at a time, of which those of like length are translated together.  None:
                16 batches.
            live: texts are waited for, by a thread, and those that are there are translated.
            place: what text ``n``, from 1, is called in an error.

        Raises DataError for what is no text, GenerationError for an overlong one or a setting out of range.
        """
        several = check_texts(texts, types=(object,), error=DataTypeError)  # _only_texts names the place
        search = {"beams": beams, "length_penalty": length_penalty, "early_stopping": early_stopping,
                  "max_new_tokens": max_new_tokens, "n_best": n_best}  # fmt: skip
        read_ahead = _POOL * batch_size if read_ahead is None else read_ahead
        for name, size in (("batch_size", batch_size), ("read_ahead", read_ahead)):
            if not isinstance(size, int) or size < 1:
                raise GenerationError(f"{name} is a number of texts above 0, not {size!r}")
        if overlong not in OVERLONG:
            raise GenerationError(f"overlong is {overlong!r}; {did_you_mean(str(overlong), OVERLONG)}")
        if sampling is not None:
            _refuse_search(search)
            n_best = sampling.samples
        if overlong == "split" and n_best > 1:
            raise GenerationError(
                'overlong "split" (--too-long split) joins one translation of each part; leave it out, or '
                "ask for one of each text"
            )
        write = self._searching(search) if sampling is None else self._drawing(sampling)
        given = _only_texts(several, place)
        pools = available_batches(given, read_ahead) if live else batches_of(given, read_ahead)
        parted = partial(self._parts, overlong=overlong, place=place)
        joined = partial(self._joined, n_best=n_best, length_penalty=length_penalty)
        written = partial(side_by_side, self.model, write)
        return _translations(pools, parted, written, joined, batch_size)

    def _searching(self, search: dict[str, Any]) -> Write:
        self._check_room(search["max_new_tokens"])
        kept = threading.local()  # batches are searched side by side, each by a thread with its own
        return lambda parts: self.search([part.row for part in parts], kept=vars(kept), **search)

    def _drawing(self, sampling: Sampling) -> Write:
        if sampling.past == "error":
            self._check_room(sampling.max_new_tokens)
        known = sampling if sampling.seed is not None else replace(sampling, seed=new_seed())
        return lambda parts: self.sample(
            [part.row for part in parts], known, numbers=[part.number for part in parts]
        )

    def _check_room(self, max_new_tokens: int | None) -> None:
        longest = context_limit(self.config)
        if longest is not None and isinstance(max_new_tokens, int) and max_new_tokens >= longest:
            raise GenerationError(
                f"max_new_tokens {max_new_tokens}: this model writes at most {longest - 1}, as its "
                f"max_seq_len is {longest} and one place begins the text; ask for fewer"
            )

    # -- what is read --------------------------------------------------------------------------------------

    def source_rows(self, texts: Sequence[str], places: Iterable[str] | None = None) -> list[Row]:
        """Token ids of each text and the end token, behind the start token where sources have one.

        Raises GenerationError for one of more tokens than the model takes, by its name in ``places``.
        """
        rows = self._encoded(texts)
        for row, place in zip(rows, map(_numbered, count(1)) if places is None else places, strict=False):
            if not self._fits(row):
                raise self._too_long(row, place)
        return rows

    def _encoded(self, texts: Sequence[str]) -> list[Row]:
        ids = self.text_source_tokenizer.encode_batch(texts, specials="text")
        begin = [] if self.source_start_id is None else [self.source_start_id]
        return [[*begin, *map(int, some), self.source_eos_id] for some in ids]

    def _fits(self, row: Row) -> bool:
        longest = context_limit(self.config)
        return longest is None or len(row) <= longest

    def _too_long(self, row: Row, place: str) -> GenerationError:
        return GenerationError(
            f"{place} has {len(row)} tokens and the model takes {context_limit(self.config)}; divide it into "
            'sentences, as overlong="split" (wordloom translate --too-long split) does'
        )

    def _parts(
        self, texts: Sequence[str], before: int, *, overlong: str, place: Place
    ) -> tuple[list[list[_Part]], GenerationError | None]:
        """What is read of each text, nothing of an empty one: up to the first that is an error, and this."""
        real = [i for i, text in enumerate(texts) if text.strip()]
        found: list[list[_Part]] = [[] for _ in texts]
        for i, row in zip(real, self._encoded([texts[i] for i in real]), strict=True):
            if not self._fits(row) and overlong == "error":
                return found[:i], self._too_long(row, place(before + i + 1))
            rows = [row] if self._fits(row) else self._divided(texts[i])
            found[i] = [_Part(some, before + i + (k << 32)) for k, some in enumerate(rows)]
        return found, None

    def _divided(self, text: str) -> list[Row]:
        """``text`` in rows that the model takes."""
        row = self._encoded([text])[0]
        if self._fits(row):
            return [row]
        parts = [part for part in sentences(text) if part.strip()]
        if len(parts) == 1 and len(words := list(re.finditer(r"\S+", text))) > 1:
            middle = words[len(words) // 2].start()
            parts = [text[:middle], text[middle:]]
        if len(parts) > 1:
            return [some for part in parts for some in self._divided(part.strip())]
        begin = [] if self.source_start_id is None else row[:1]
        own, longest = row[len(begin) : -1], context_limit(self.config)
        most = len(own) if longest is None else longest - len(begin) - 1
        return [[*begin, *own[k : k + most], self.source_eos_id] for k in range(0, len(own), most)]

    def read(self, rows: Sequence[Sequence[int]]) -> Memory:
        """What the encoder makes of sources, each as token ids that end in ``source_eos_id``."""
        device = next(self.model.parameters()).device
        S = max(map(len, rows))
        pad = self.pad_id if self.source_tokenizer is None else self.source_tokenizer.pad_id
        pad = max(pad or 0, 0)  # any that the model knows: nothing attends to it
        source = torch.tensor([[*row, *[pad] * (S - len(row))] for row in rows], device=device)  # [B, S]
        lengths = torch.tensor([len(row) for row in rows], device=device)
        attend = torch.arange(S, device=device) < lengths[:, None]
        with evaluating(self.model):
            return self.model.encode(source, attend=None if bool(attend.all()) else attend)

    # -- what is written -----------------------------------------------------------------------------------

    def search(
        self, rows: Sequence[Sequence[int]], *, kept: dict[str, Any] | None = None, **settings: Any
    ) -> list[list[Hypothesis]]:
        """Hypotheses for sources as :meth:`read` takes them; ``settings`` are beam search's, and ``kept`` is
        as in :class:`~wordloom.generate.Conditioned`."""
        self._check_ids()
        return beam_search(
            Conditioned(self.model, self.read(rows), kept=kept),
            [[self.start_id]] * len(rows),
            eos_ids=[self.eos_id],
            forced_eos_id=self.forced_eos_id,
            forbidden_ids=self.silent_ids,
            vocab_size=self._vocab_size,
            **settings,
        )

    def sample(
        self, rows: Sequence[Sequence[int]], sampling: Sampling, *, numbers: Sequence[int] | None = None
    ) -> list[list[Hypothesis]]:
        """What is drawn for each source, the likeliest first.

        ``numbers`` of the sources, by default from 0, key their draws: what one becomes depends on no other.
        """
        self._check_ids()
        n, numbers = sampling.samples, range(len(rows)) if numbers is None else numbers
        drawn = generate(
            Conditioned(self.model, self.read(rows)),
            [[self.start_id]] * len(rows),
            sampling,
            eos_ids=[self.eos_id],
            forbidden_ids=self.silent_ids,
            vocab_size=self._vocab_size,
            keys=[number * n + k for number in numbers for k in range(n)],
        )
        made = [self._hypothesis(one) for one in drawn]
        return [sorted(made[i : i + n], key=lambda one: -one.score) for i in range(0, len(made), n)]

    def _check_ids(self) -> None:
        if min(self.eos_id, self.pad_id, self.start_id) < 0:
            raise CheckpointError(
                f"{self.folder} has no tokenizer, and its config.json does not say which tokens end and pad "
                "texts; put its tokenizer.json there, or eos_token_id and pad_token_id into config.json"
            )

    def _hypothesis(self, drawn: Generation) -> Hypothesis:
        """What was drawn, the end forced on it as in a search."""
        ids, logprobs = drawn.ids, drawn.logprobs
        if drawn.finish_reason == "length" and self.forced_eos_id is not None:
            ids, logprobs = [*ids[:-1], self.forced_eos_id], logprobs[:-1]
        logprob = math.fsum(logprobs)
        return Hypothesis(ids, logprob / len(ids), logprob)

    def _joined(
        self, parts: list[list[Hypothesis]], *, n_best: int, length_penalty: float
    ) -> list[Translation]:
        """The translations of a text from the hypotheses of its parts."""
        if not parts:
            return [Translation("", 0.0)] * n_best
        if len(parts) == 1:
            return [Translation(self._text(one), one.score) for one in parts[0]]
        best = [some[0] for some in parts]
        length = sum(len(one.ids) for one in best)
        score = math.fsum(one.logprob for one in best) / length**length_penalty
        return [Translation(" ".join(filter(None, map(self._text, best))), score)]

    def _text(self, hypothesis: Hypothesis) -> str:
        ids = [token for token in hypothesis.ids if token != self.eos_id]
        return self.text_tokenizer.decode(ids).strip()

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that :func:`wordloom.load` reads as it is, and transformers what it knows of."""
        beside = self.source_tokenizer if self.separate else None
        generation = dict(self.generation_defaults)
        if self.tokenizer is None:
            ids = {"eos_token_id": self.eos_id, "pad_token_id": self.pad_id}
            generation |= {name: token for name, token in ids.items() if token >= 0}
        if self.start_id not in (self.pad_id, -1):
            generation["decoder_start_token_id"] = self.start_id
        if "forced_eos_token_id" in format_of(self.config).token_settings({"eos_token_id": self.eos_id}):
            generation["forced_eos_token_id"] = self.forced_eos_id
        save_model(
            self.model,
            Path(folder),
            tokenizer=self.tokenizer,
            source_tokenizer=beside,
            generation=generation,
            overwrite=overwrite,
        )


def _only_texts(texts: Iterable[str], place: Place) -> Iterator[str]:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise DataError(f"{place(number)} is no text but {text!r:.60}; give each as a str")
        yield text


def _refuse_search(search: dict[str, Any]) -> None:
    """Raise GenerationError for settings of a search where translations are drawn."""
    usual = inspect.signature(Translator.translate).parameters
    given = [name for name, value in search.items() if value != usual[name].default]
    if given:
        raise GenerationError(
            f"sampling draws in place of a search: leave out {', '.join(given)}; Sampling has samples and "
            "max_new_tokens of its own"
        )


def _translations(
    pools: Iterator[list[str]],
    parted: Callable[[Sequence[str], int], tuple[list[list[_Part]], GenerationError | None]],
    write: WriteAll,
    joined: Callable[[list[list[Hypothesis]]], list[Translation]],
    batch_size: int,
) -> Iterator[list[Translation]]:
    done = 0
    for pool in pools:
        texts, wrong = parted(pool, done)
        parts = sorted((part for text in texts for part in text), key=lambda part: len(part.row))
        batches = [parts[start : start + batch_size] for start in range(0, len(parts), batch_size)]
        made = [each for some in write(batches) for each in some]
        found = dict(zip((part.number for part in parts), made, strict=True))
        for text in texts:
            yield joined([found[part.number] for part in text])
        if wrong is not None:
            raise wrong
        done += len(pool)
