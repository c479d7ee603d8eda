"""Synthetic biographies in English, whose facts have a known entropy.

This is the data set bioS of Allen-Zhu & Li 2024 (arXiv:2404.05405), with tables of the paper's sizes and
other words: names and places are made of syllables.  A biography has six sentences in random order, one for
each attribute, and each sentence follows a random template.  The first sentence has the full name, and the
others the pronoun.  The company decides the city of work.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wordloom.errors import ConfigError

_MOST_PEOPLE = 10_000_000
_WORLD, _EXPOSURE, _SENTENCES = range(3)  # streams of random numbers of one seed


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


class Biographies:
    """The biographies of ``people`` people; each text is a function of (seed, exposure, person).

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
    def _values(self) -> NDArray[np.int64]:
        """The values of each person, [N, 8]."""
        sizes = (len(PRONOUNS), 12, 28, 200, len(CITIES), len(UNIVERSITIES), len(MAJORS), len(COMPANIES))
        draw = np.random.default_rng([self.seed, _WORLD, 1])
        return (draw.random((self.people, len(sizes))) * sizes).astype(np.int64)

    def person(self, number: int) -> Person:
        """Return the facts of person ``number``, from 0."""
        rest, last = divmod(int(self._names[number]), len(LAST_NAMES))
        first, middle = divmod(rest, len(MIDDLE_NAMES))
        pronoun, month, day, year, city, university, major, company = self._values[number].tolist()
        return Person(
            name=f"{FIRST_NAMES[first]} {MIDDLE_NAMES[middle]} {LAST_NAMES[last]}",
            pronoun=PRONOUNS[pronoun],
            birthday=f"{MONTHS[month]} {day + 1}, {1900 + year}",
            birth_city=CITIES[city],
            university=UNIVERSITIES[university],
            major=MAJORS[major],
            company=COMPANIES[company],
            work_city=CITIES[self._company_cities[company]],
        )

    def order(self, exposure: int) -> NDArray[np.int64]:
        """Return the people [N] in the order of an exposure."""
        return np.random.default_rng([self.seed, _EXPOSURE, exposure]).random(self.people).argsort()

    def biography(self, number: int, exposure: int) -> Biography:
        """Return the biography of person ``number`` in an exposure."""
        person = self.person(number)
        draw = np.random.default_rng([self.seed, _SENTENCES, exposure, number])
        fields = list(TEMPLATES)
        order, picks = draw.random(len(fields)).argsort(), draw.random(len(fields))
        text, spans = "", dict[str, tuple[int, int]]()
        for place, i in enumerate(order.tolist()):
            field, who = fields[i], "name" if place == 0 else "pronoun"
            templates = TEMPLATES[field]
            before, between = templates[int(picks[i] * len(templates))].split("{value}")
            for part, value in ((who, getattr(person, who)), (field, getattr(person, field))):
                lead = before.removeprefix("{who}") if part == field else ""
                start = len(text) + len(lead)
                text += lead + value
                spans.setdefault(part, (start, start + len(value)))
            text += between + " "
        return Biography(text.rstrip(), spans)
