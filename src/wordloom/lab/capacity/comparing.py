"""Compare the finished runs below a folder: the bits per parameter by the number of people."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError
from wordloom.lab.capacity.result import KINDS, RESULT, Result, read_result


class Point(NamedTuple):
    """The runs of a curve with one number of people; they differ in the seed.

    Attributes:
        people: N.
        results: the results of the runs, by seed.
    """

    people: int
    results: tuple[Result, ...]

    def bits(self, kind: str) -> float:
        """Return the bits per parameter with weights of ``kind``, one of KINDS: the mean over the seeds."""
        return mean(each.kinds[kind].stored.total / each.parameters for each in self.results)

    @property
    def most(self) -> float:
        """The bits of all facts per parameter, the mean over the seeds."""
        return mean(each.most.total / each.parameters for each in self.results)


@dataclass(frozen=True)
class Curve:
    """Runs that differ only in the number of people and the seed.

    Attributes:
        family: the family of the models.
        exposures: how often training showed each person.
        settings: the other settings that differ between the curves of this family.
        points: by the number of people.
    """

    family: str
    exposures: int
    settings: dict[str, Any]
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        more = [f"{name.replace('_', ' ')} {value}" for name, value in self.settings.items()]
        return ", ".join([self.family, f"{self.exposures:,} exposure{'s' * (self.exposures != 1)}", *more])


@dataclass(frozen=True)
class Comparison:
    """The curves of all finished runs."""

    curves: tuple[Curve, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "experiment": "capacity",
            "curves": [
                {
                    "name": curve.name,
                    "family": curve.family,
                    "exposures": curve.exposures,
                    **curve.settings,
                    "points": [
                        {
                            "people": point.people,
                            "bits_per_parameter": {kind: point.bits(kind) for kind in KINDS},
                            "possible_bits_per_parameter": point.most,
                            "runs": [each.as_dict() for each in point.results],
                        }
                        for point in curve.points
                    ],
                }
                for curve in self.curves
            ],
        }


def compare(folder: Path) -> Comparison:
    """Return the comparison of all finished runs in ``folder`` and the folders below it.

    Raises CheckpointError if there is none.
    """
    results = [read_result(path.parent) for path in sorted(folder.rglob(RESULT))]
    if not results:
        raise CheckpointError(f"{folder} holds no finished run of 'wordloom lab capacity train'")
    groups = defaultdict[tuple[Any, ...], list[Result]](list)
    for each in results:
        groups[each.settings.family, each.settings.exposures, *_others(each).items()].append(each)
    curves = []
    for key, members in sorted(groups.items(), key=lambda item: str(item[0])):
        same_family = [_others(each) for each in results if each.settings.family == key[0]]
        own = _others(members[0])
        settings = {name: own[name] for name in own if len({each[name] for each in same_family}) > 1}
        curves.append(Curve(key[0], key[1], settings, _points(members)))
    return Comparison(tuple(sorted(curves, key=lambda curve: (curve.family, -curve.exposures))))


def _others(result: Result) -> dict[str, Any]:
    """Return the settings that make another curve, beside the family and the exposures."""
    saved = result.settings.as_dict()
    same = ("family", "exposures", "people", "seed")
    return {name: value for name, value in saved.items() if name not in same}


def _points(results: list[Result]) -> tuple[Point, ...]:
    points = []
    for people in sorted({each.settings.people for each in results}):
        same = [each for each in results if each.settings.people == people]
        points.append(Point(people, tuple(sorted(same, key=lambda each: each.settings.seed))))
    return tuple(points)
