"""A trained translation model: translate texts, and read or write token ids."""

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

_POOL = 16  # batches whose texts are sorted by length together: little padding, and few texts in memory

Overlong: TypeAlias = Literal["error", "split"]
OVERLONG = ("error", "split")
Row: TypeAlias = list[int]
Place: TypeAlias = Callable[[int], str]  # names a text in an error, by its number from 1


def _numbered(number: int) -> str:
    return f"text {number}"


class Translation(NamedTuple):
    """A translation of a text, and its score.

    The score is the log-probability in nats, divided by ``length ** length_penalty``. The length counts
    tokens, with the end token. The empty translation of an empty text has score 0.
    """

    text: str
    score: float

    @property
    def line(self) -> str:
        """The text in one line, with a space for each line break."""
        return " ".join(self.text.splitlines())


class _Part(NamedTuple):
    """A text or a part of one, as token ids; ``number`` keys its random draws.

    The number of an undivided text is that of the text, from 0.
    """

    row: Row
    number: int


Write: TypeAlias = Callable[[Sequence[_Part]], list[list[Hypothesis]]]


@dataclass(kw_only=True)
class Translator(ReadsText):
    """A translation model and its tokenizers, as :func:`wordloom.load` returns them.

    Attributes:
        tokenizer: the tokenizer of translations; None if the folder has no tokenizer.
        source_tokenizer: the tokenizer of sources, often the same object.
        source_eos_id, eos_id: the ids that end sources and translations; -1 for an unknown id.
        start_id: the id that begins translations: the folder's, or padding, as in Marian.
        source_start_id: the id that begins sources; None if they begin with their own tokens.
        forced_eos_id: the last id of a translation that reaches the length limit; None forces no end.
        generation_defaults: the settings in generation_config.json, which :meth:`save_pretrained` keeps.
    """

    source_tokenizer: Tokenizer | None
    source_eos_id: int
    eos_id: int
    pad_id: int
    start_id: int
    source_start_id: int | None = None
    forced_eos_id: int | None = None
    generation_defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def text_source_tokenizer(self) -> Tokenizer:
        """The tokenizer of sources; raises CheckpointError if the folder has none."""
        return required_tokenizer(self.source_tokenizer, self.folder)

    @property
    def _vocab_size(self) -> int:
        size: int = self.config.vocab_size if self.tokenizer is None else self.tokenizer.vocab_size
        return size

    @property
    def silent_ids(self) -> list[int]:
        """The ids that no translation contains: padding, and the start token."""
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
        """Yield the ``n_best`` translations of each text, the best first, in the order of the texts.

        A text of white space alone has ``n_best`` empty translations. Other texts have fewer if the search
        finds fewer. ``beams`` 1 is greedy. The settings up to ``n_best`` are those of
        :func:`~wordloom.generate.beam_search`.

        Args:
            sampling: draw ``sampling.samples`` translations of each text instead of searching. The draws of
                a text depend only on the seed and on the number of the text.
            overlong: what happens to a text with more tokens than the model reads. ``"error"`` raises after
                the texts before it. ``"split"`` divides it at the ends of sentences, a longer sentence in
                halves between words, and a longer word between tokens. The best translations of the parts
                are joined by spaces.
            read_ahead: how many texts to read at a time; texts of similar length are translated together.
                None: 16 batches.
            live: translate the texts that have arrived, instead of waiting for ``read_ahead`` texts; a
                thread reads them.
            place: names text ``n``, from 1, in an error.

        Raises DataError for an item that is not a str, GenerationError for a text that is too long or for a
        setting out of range.
        """
        texts = _only_texts(check_texts(texts, types=(object,), error=DataTypeError), place)
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
        pools = available_batches(texts, read_ahead) if live else batches_of(texts, read_ahead)
        join = partial(self._joined, n_best=n_best, length_penalty=length_penalty)
        return self._translations(pools, write, join, overlong, place, batch_size)

    def _translations(
        self,
        pools: Iterator[list[str]],
        write: Write,
        join: Callable[[list[list[Hypothesis]]], list[Translation]],
        overlong: Overlong,
        place: Place,
        batch_size: int,
    ) -> Iterator[list[Translation]]:
        """Yield the translations of each text in ``pools``; batches hold parts of similar length."""
        done = 0
        for pool in pools:
            texts, error = self._parts(pool, done, overlong, place)
            parts = sorted((part for text in texts for part in text), key=lambda part: len(part.row))
            batches = [parts[start : start + batch_size] for start in range(0, len(parts), batch_size)]
            hypotheses = [each for batch in side_by_side(self.model, write, batches) for each in batch]
            by_number = dict(zip((part.number for part in parts), hypotheses, strict=True))
            for text in texts:
                yield join([by_number[part.number] for part in text])
            if error is not None:
                raise error
            done += len(pool)

    def _searching(self, search: dict[str, Any]) -> Write:
        self._check_room(search["max_new_tokens"])
        buffers = threading.local()  # batches are searched in parallel, and each thread has its own buffers
        return lambda parts: self.search([part.row for part in parts], kept=vars(buffers), **search)

    def _drawing(self, sampling: Sampling) -> Write:
        if sampling.past == "error":
            self._check_room(sampling.max_new_tokens)
        seeded = sampling if sampling.seed is not None else replace(sampling, seed=new_seed())
        return lambda parts: self.sample(
            [part.row for part in parts], seeded, numbers=[part.number for part in parts]
        )

    def _check_room(self, max_new_tokens: int | None) -> None:
        longest = context_limit(self.config)
        if longest is not None and isinstance(max_new_tokens, int) and max_new_tokens >= longest:
            raise GenerationError(
                f"max_new_tokens {max_new_tokens}: this model writes at most {longest - 1}, as its "
                f"max_seq_len is {longest} and one place begins the text; ask for fewer"
            )

    # -- sources -------------------------------------------------------------------------------------------

    def source_rows(self, texts: Sequence[str], places: Iterable[str] | None = None) -> list[Row]:
        """Return the token ids of each text, with the end token and, if sources have one, the start token.

        Raises GenerationError for a text with more tokens than the model reads, and names it by ``places``.
        """
        rows = self._encoded(texts)
        for row, place in zip(rows, map(_numbered, count(1)) if places is None else places, strict=False):
            if not self._fits(row):
                raise self._too_long(row, place)
        return rows

    def _encoded(self, texts: Sequence[str]) -> list[Row]:
        ids = self.text_source_tokenizer.encode_batch(texts, specials="text")
        begin = [] if self.source_start_id is None else [self.source_start_id]
        return [[*begin, *map(int, row), self.source_eos_id] for row in ids]

    def _fits(self, row: Row) -> bool:
        longest = context_limit(self.config)
        return longest is None or len(row) <= longest

    def _too_long(self, row: Row, place: str) -> GenerationError:
        return GenerationError(
            f"{place} has {len(row)} tokens and the model takes {context_limit(self.config)}; divide it into "
            'sentences, as overlong="split" (wordloom translate --too-long split) does'
        )

    def _parts(
        self, texts: Sequence[str], before: int, overlong: Overlong, place: Place
    ) -> tuple[list[list[_Part]], GenerationError | None]:
        """Return the parts of each text up to the first text that is an error, and that error.

        An empty text has no parts; ``before`` texts came before these.
        """
        filled = [i for i, text in enumerate(texts) if text.strip()]
        parts: list[list[_Part]] = [[] for _ in texts]
        for i, row in zip(filled, self._encoded([texts[i] for i in filled]), strict=True):
            if not self._fits(row) and overlong == "error":
                return parts[:i], self._too_long(row, place(before + i + 1))
            rows = [row] if self._fits(row) else self._divided(texts[i])
            parts[i] = [_Part(ids, before + i + (k << 32)) for k, ids in enumerate(rows)]
        return parts, None

    def _divided(self, text: str) -> list[Row]:
        """Return ``text`` in rows that are short enough for the model."""
        row = self._encoded([text])[0]
        if self._fits(row):
            return [row]
        parts = [part for part in sentences(text) if part.strip()]
        if len(parts) == 1 and len(words := list(re.finditer(r"\S+", text))) > 1:
            middle = words[len(words) // 2].start()
            parts = [text[:middle], text[middle:]]
        if len(parts) > 1:
            return [ids for part in parts for ids in self._divided(part.strip())]
        begin = [] if self.source_start_id is None else row[:1]
        tokens, longest = row[len(begin) : -1], context_limit(self.config)
        most = len(tokens) if longest is None else longest - len(begin) - 1
        return [[*begin, *tokens[k : k + most], self.source_eos_id] for k in range(0, len(tokens), most)]

    def read(self, rows: Sequence[Sequence[int]]) -> Memory:
        """Return the encoder's memory of sources, each given as token ids that end in ``source_eos_id``."""
        device = next(self.model.parameters()).device
        S = max(map(len, rows))
        pad = self.pad_id if self.source_tokenizer is None else self.source_tokenizer.pad_id
        pad = max(pad or 0, 0)  # any id of the vocabulary will do: nothing attends to it
        source = torch.tensor([[*row, *[pad] * (S - len(row))] for row in rows], device=device)  # [B, S]
        lengths = torch.tensor([len(row) for row in rows], device=device)  # [B]
        attend = torch.arange(S, device=device) < lengths[:, None]  # [B, S]
        with evaluating(self.model):
            return self.model.encode(source, attend=None if bool(attend.all()) else attend)

    # -- translations --------------------------------------------------------------------------------------

    def search(
        self, rows: Sequence[Sequence[int]], *, kept: dict[str, Any] | None = None, **settings: Any
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of a beam search with these ``settings`` for sources as in :meth:`read`.

        ``kept`` is that of :class:`~wordloom.generate.Conditioned`.
        """
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
        """Return the samples for each source, the most probable first.

        The ``numbers`` of the sources, by default from 0, key their random draws, so that the samples of a
        source do not depend on other sources.
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
        samples = [self._hypothesis(sample) for sample in drawn]
        return [sorted(samples[i : i + n], key=lambda one: -one.score) for i in range(0, len(samples), n)]

    def _check_ids(self) -> None:
        if min(self.eos_id, self.pad_id, self.start_id) < 0:
            raise CheckpointError(
                f"{self.folder} has no tokenizer, and its config.json does not say which tokens end and pad "
                "texts; put its tokenizer.json there, or eos_token_id and pad_token_id into config.json"
            )

    def _hypothesis(self, sample: Generation) -> Hypothesis:
        """Return a sample as a hypothesis, with a forced end as in a beam search."""
        ids, logprobs = sample.ids, sample.logprobs
        if sample.finish_reason == "length" and self.forced_eos_id is not None:
            ids, logprobs = [*ids[:-1], self.forced_eos_id], logprobs[:-1]
        logprob = math.fsum(logprobs)
        return Hypothesis(ids, logprob / len(ids), logprob)

    def _joined(
        self, parts: list[list[Hypothesis]], *, n_best: int, length_penalty: float
    ) -> list[Translation]:
        """Return the translations of a text from the hypotheses of its parts."""
        if not parts:
            return [Translation("", 0.0)] * n_best
        if len(parts) == 1:
            return [Translation(self._text(one), one.score) for one in parts[0]]
        best = [hypotheses[0] for hypotheses in parts]
        length = sum(len(one.ids) for one in best)
        score = math.fsum(one.logprob for one in best) / length**length_penalty
        return [Translation(" ".join(filter(None, map(self._text, best))), score)]

    def _text(self, hypothesis: Hypothesis) -> str:
        ids = [token for token in hypothesis.ids if token != self.eos_id]
        return self.text_tokenizer.decode(ids).strip()

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that :func:`wordloom.load` reads, and transformers if it has the architecture."""
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
            source_tokenizer=None if self.source_tokenizer is self.tokenizer else self.source_tokenizer,
            generation=generation,
            overwrite=overwrite,
        )


def _only_texts(texts: Iterable[str], place: Place) -> Iterator[str]:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise DataError(f"{place(number)} is not text but {text!r:.60}; give each as a str")
        yield text


def _refuse_search(search: dict[str, Any]) -> None:
    """Raise GenerationError for a setting of the beam search that is not the default."""
    parameters = inspect.signature(Translator.translate).parameters
    changed = [name for name, value in search.items() if value != parameters[name].default]
    if changed:
        raise GenerationError(
            f"sampling draws instead of a search: leave out {', '.join(changed)}; Sampling has samples and "
            "max_new_tokens of its own"
        )
