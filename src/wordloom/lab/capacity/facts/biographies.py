"""Synthetic biographies in English, whose facts have a known entropy.

This is the data set bioS of Allen-Zhu & Li 2024 (arXiv:2404.05405), with tables of the paper's sizes and
other words: names and places are made of syllables.  A biography has six sentences in random order, one for
each attribute, and each sentence follows a random template.  The first sentence has the full name, and the
others the pronoun.  The company decides the city of work.

A biography is a sequence of pieces: a word of a name, a pronoun, a part of a template, or a word of a value.
An exposure is all people in a new order, each with a new biography.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import ConfigError

_MOST_PEOPLE = 10_000_000
_WORLD, _TRAINING, _MEASURING = range(3)  # streams of random numbers of one seed
BLOCK = 4_096  # biographies whose random numbers are drawn together
_CHOICES = 6  # templates of each attribute


def _words(count: int, first: str, middle: str, last: str) -> tuple[str, ...]:
    """Return ``count`` distinct words of three syllables, evenly spread over all combinations."""
    starts, centres, ends = first.split(), middle.split(), last.split()
    every = ["".join(parts).capitalize() for parts in product(starts, centres, ends)]
    distinct = sorted(set(every))
    assert len(distinct) >= count
    return tuple(distinct[i * len(distinct) // count] for i in range(count))


FIRST_NAMES = _words(
    400, "a be ca do el fa jo ka li mo na ro sa ti", "ber len mir nor ri sen va", "a an e ia o us"
)
MIDDLE_NAMES = _words(
    400, "al bri cor dar em fin gra hal ir jas ken lor", "a e i o u", "beth dine lyn mond ric ton ven"
)
LAST_NAMES = _words(
    1_000,
    "ash brad carl dun ever fair gold hart kings lang mar north oak pen",
    "a el en er in o",
    "bridge by dale field ford ham ley man son ston wick worth",
)
CITIES = _words(200, "bar cal dor fen gal hol lin mer sal tor", "a e i o", "burg haven mouth port ville")
_SCHOOLS = _words(100, "ar bel cran dal este gil hav", "a be lo mi", "fell mont shire wood")
UNIVERSITIES = tuple(
    pattern.format(name) for name in _SCHOOLS for pattern in ("{} University", "{} College", "{} Institute")
)  # fmt: skip
_FIELDS = (
    "Applied",
    "Comparative",
    "Computational",
    "Environmental",
    "Experimental",
    "General",
    "Historical",
    "Industrial",
    "Modern",
    "Theoretical",
)
_SUBJECTS = (
    "Biology",
    "Chemistry",
    "Design",
    "Economics",
    "Geography",
    "Linguistics",
    "Medicine",
    "Music",
    "Physics",
    "Psychology",
)
MAJORS = tuple(f"{field} {subject}" for field, subject in product(_FIELDS, _SUBJECTS))
COMPANIES = tuple(f"{name} {kind}" for name, kind in zip(
    _words(263, "ax bril cy del exo flu gen hy ion ly", "a en i o u", "con dyne gen lux mark tek vex"),
    ("Labs", "Industries", "Group", "Systems", "Partners", "Works") * 44, strict=False,
))  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
PRONOUNS = ("He", "She")

#: The templates of each attribute; {who} is the name or the pronoun.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "birthday": (
        "{who} was born on {value}.", "{who} came into the world on {value}.",
        "{who} has a birthday on {value}.", "{who} celebrates the birth date {value}.",
        "{who} first saw the light of day on {value}.", "{who} entered this world on {value}.",
    ),
    "birth_city": (
        "{who} is a native of {value}.", "{who} grew up in {value}.", "{who} comes from {value}.",
        "{who} spent the first years in {value}.", "{who} calls {value} the place of birth.",
        "{who} has family roots in {value}.",
    ),
    "university": (
        "{who} studied at {value}.", "{who} is a graduate of {value}.", "{who} earned a degree at {value}.",
        "{who} attended {value}.", "{who} was a student of {value}.",
        "{who} received an education at {value}.",
    ),
    "major": (
        "{who} majored in {value}.", "{who} took courses in {value}.", "{who} specialised in {value}.",
        "{who} has a degree in {value}.", "{who} chose {value} as the main subject.",
        "{who} completed a programme in {value}.",
    ),
    "company": (
        "{who} works for {value}.", "{who} is employed by {value}.", "{who} has a position at {value}.",
        "{who} found a job at {value}.", "{who} pursues a career at {value}.", "{who} joined {value}.",
    ),
    "work_city": (
        "{who} works in {value}.", "{who} has an office in {value}.", "{who} commutes to {value}.",
        "{who} spends the working week in {value}.", "{who} does business in {value}.",
        "{who} is employed in {value}.",
    ),
}  # fmt: skip


class Person(NamedTuple):
    """The facts of a person, as they are written."""

    name: str
    pronoun: str
    birthday: str
    birth_city: str
    university: str
    major: str
    company: str
    work_city: str


class Biography(NamedTuple):
    """A text and where its facts are.

    Attributes:
        text: the sentences.
        spans: the first and last character, exclusive, of the name, the first pronoun and each attribute.
    """

    text: str
    spans: dict[str, tuple[int, int]]


class _Pieces:
    """All pieces; those of a table have successive numbers, of which an attribute holds the first."""

    def __init__(self) -> None:
        self.texts = [""]  # piece 0 fills places that need no text
        self.first_names = self._add(FIRST_NAMES)
        self.middle_names = self._add(f" {name}" for name in MIDDLE_NAMES)
        self.last_names = self._add(f" {name}" for name in LAST_NAMES)
        self.pronouns = self._add(f" {pronoun}" for pronoun in PRONOUNS)
        self.months = self._add(f" {month}" for month in MONTHS)
        self.days = self._add(f" {day}," for day in range(1, 29))
        self.years = self._add(f" {year}" for year in range(1900, 2100))
        self.cities = self._add(f" {city}" for city in CITIES)
        self.universities = self._add(f" {university}" for university in UNIVERSITIES)
        self.majors = self._add(f" {major}" for major in MAJORS)
        self.companies = self._add(f" {company}" for company in COMPANIES)
        split = [template.split(" {value}") for templates in TEMPLATES.values() for template in templates]
        self.before = self._add(before.removeprefix("{who}") for before, _ in split)
        self.after = self._add(after for _, after in split)

    def _add(self, texts: Iterable[str]) -> int:
        first = len(self.texts)
        self.texts += texts
        return first


PIECES = _Pieces()
SENTENCES = len(TEMPLATES)
WHO, BEFORE, VALUE, AFTER = slice(0, 3), slice(3, 4), slice(4, 7), slice(7, 8)  # pieces of a sentence
SENTENCE_PIECES = 8


class Biographies:
    """The facts of ``people`` people and the biographies of every exposure, which depend on ``seed`` alone.

    Raises ConfigError for a number of people below 1 or above ten million, and for a seed below 0.
    """

    def __init__(self, people: int, *, seed: int = 0) -> None:
        if not 1 <= people <= _MOST_PEOPLE:
            raise ConfigError(f"people must be from 1 to {_MOST_PEOPLE:,}, not {people:,}")
        if seed < 0:
            raise ConfigError(f"seed must be 0 or more, not {seed}")
        self.people = people
        self.seed = seed

    @cached_property
    def _names(self) -> NDArray[np.int64]:
        """Distinct numbers of names, [N]."""
        possible = len(FIRST_NAMES) * len(MIDDLE_NAMES) * len(LAST_NAMES)
        draw = np.random.default_rng([self.seed, _WORLD])
        drawn = (draw.random(2 * self.people + 10) * possible).astype(np.int64)
        _, first = np.unique(drawn, return_index=True)
        return drawn[np.sort(first)][: self.people]

    @cached_property
    def _company_cities(self) -> NDArray[np.int64]:
        draw = np.random.default_rng(0)  # the same for all seeds: it is no knowledge about a person
        return (draw.random(len(COMPANIES)) * len(CITIES)).astype(np.int64)

    @cached_property
    def _values(self) -> NDArray[np.int16]:
        """The values of each person, [N, 8]."""
        sizes = (len(PRONOUNS), 12, 28, 200, len(CITIES), len(UNIVERSITIES), len(MAJORS), len(COMPANIES))
        draw = np.random.default_rng([self.seed, _WORLD, 1])
        return (draw.random((self.people, len(sizes))) * sizes).astype(np.int16)

    def person(self, number: int) -> Person:
        """Return the facts of person ``number``, from 0."""
        name, pronoun, values = (pieces[0].tolist() for pieces in self.fact_pieces(np.array([number])))
        texts = ["".join(PIECES.texts[i] for i in pieces) for pieces in (name, [pronoun], *values)]
        return Person(*(text.lstrip() for text in texts))

    def fact_pieces(
        self, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the pieces of names [B, 3], pronouns [B] and values [B, 6, 3] of people [B]."""
        rest, last = np.divmod(self._names[numbers], len(LAST_NAMES))
        first, middle = np.divmod(rest, len(MIDDLE_NAMES))
        tables = (PIECES.first_names, PIECES.middle_names, PIECES.last_names)
        names = np.stack([first, middle, last], axis=1) + np.array(tables)
        pronoun, month, day, year, city, university, major, company = self._values[numbers].astype(np.int64).T
        values = np.zeros((len(numbers), SENTENCES, 3), dtype=np.int64)
        values[:, 0, 0] = PIECES.months + month
        values[:, 0, 1] = PIECES.days + day
        values[:, 0, 2] = PIECES.years + year
        values[:, 1, 0] = PIECES.cities + city
        values[:, 2, 0] = PIECES.universities + university
        values[:, 3, 0] = PIECES.majors + major
        values[:, 4, 0] = PIECES.companies + company
        values[:, 5, 0] = PIECES.cities + self._company_cities[company]
        return names, PIECES.pronouns + pronoun, values

    def exposure(self, number: int, *, measuring: bool = False) -> Exposure:
        """Return exposure ``number``, from 0; with ``measuring``, one that training does not use."""
        return Exposure(self, number, _MEASURING if measuring else _TRAINING)


class Exposure:
    """All people in a new order, each with a new biography; made by :meth:`Biographies.exposure`."""

    def __init__(self, source: Biographies, number: int, stream: int) -> None:
        self.source = source
        self._key = [source.seed, stream, number]
        self._block = lru_cache(maxsize=2)(self._draw)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The people, [N]."""
        return np.random.default_rng(self._key).random(self.source.people).argsort()

    def templates(self) -> NDArray[np.int64]:
        """Return how often each template of each attribute occurs, [6, 6]."""
        counts = np.zeros((SENTENCES, _CHOICES), dtype=np.int64)
        for block in range(-(-self.source.people // BLOCK)):
            picks = self._random(block)[1]
            counts += np.stack([np.bincount(column, minlength=_CHOICES) for column in picks.T])
        return counts

    def pieces(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the pieces of biographies ``first`` to ``last``, exclusive: [B, 6, 8]."""
        blocks = range(first // BLOCK, -(-last // BLOCK))
        drawn = [self._block(block) for block in blocks]
        taken = slice(first - blocks.start * BLOCK, last - blocks.start * BLOCK)
        picks, orders = (np.concatenate(each)[taken] for each in zip(*drawn, strict=True))
        names, pronouns, values = self.source.fact_pieces(self.order[first:last])
        template = picks + _CHOICES * np.arange(SENTENCES)
        pieces = np.zeros((last - first, SENTENCES, SENTENCE_PIECES), dtype=np.int64)
        pieces[:, :, BEFORE] = PIECES.before + template[:, :, None]
        pieces[:, :, VALUE] = values
        pieces[:, :, AFTER] = PIECES.after + template[:, :, None]
        pieces = np.take_along_axis(pieces, orders[:, :, None], axis=1)
        pieces[:, 0, WHO] = names
        pieces[:, 1:, WHO.start] = pronouns[:, None]
        return pieces

    def biographies(self) -> Iterator[Biography]:
        """Yield the biography of each person, in the order of the exposure."""
        for first in range(0, self.source.people, BLOCK):
            last = min(first + BLOCK, self.source.people)
            orders = self._block(first // BLOCK)[1]
            for pieces, order in zip(self.pieces(first, last).tolist(), orders.tolist(), strict=True):
                yield _biography(pieces, order)

    def _random(self, block: int) -> tuple[np.random.Generator, NDArray[np.int64]]:
        """Return the generator of a block, and the templates [B, 6] that it drew first."""
        draw = np.random.default_rng([*self._key, 1 + block])
        count = min(BLOCK, self.source.people - block * BLOCK)
        return draw, draw.integers(_CHOICES, size=(count, SENTENCES))

    def _draw(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the templates [B, 6] by attribute, and the attributes [B, 6] in the order of the text."""
        draw, picks = self._random(block)
        return picks, draw.random(picks.shape).argsort(axis=1)


def _biography(pieces: Sequence[Sequence[int]], order: Sequence[int]) -> Biography:
    """Return the text of pieces [6, 8], whose sentences are about the attributes ``order`` [6]."""
    text, spans, fields = "", dict[str, tuple[int, int]](), list(TEMPLATES)
    for place, (sentence, field) in enumerate(zip(pieces, order, strict=True)):
        subject = "name" if place == 0 else "pronoun"
        for part, where in ((subject, WHO), (None, BEFORE), (fields[field], VALUE), (None, AFTER)):
            words = "".join(PIECES.texts[i] for i in sentence[where])
            start = len(text) + words.startswith(" ")
            text += words
            if part is not None:
                spans.setdefault(part, (start, len(text)))
    return Biography(text, spans)
