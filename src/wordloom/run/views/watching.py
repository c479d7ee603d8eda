"""Views of a model while it trains: ``train.inspect``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from wordloom.errors import ConfigError, WordloomError
from wordloom.files import write_text
from wordloom.inspect.attention import attention_map
from wordloom.inspect.directions import geometry
from wordloom.inspect.figures import load_matplotlib
from wordloom.inspect.heads import head_scores
from wordloom.inspect.layers.contributions import contributions
from wordloom.inspect.layers.lens import lens
from wordloom.inspect.layers.states import row_of
from wordloom.inspect.token_names import namer
from wordloom.inspect.view import View
from wordloom.text import Tokenizer
from wordloom.training.hooks import finished_weights
from wordloom.training.trainer import Hook, StepRecord, Trainer

_OF_TEXT: dict[str, Callable[[Any, list[int], Callable[[int], str]], View]] = {
    "lens": lens,
    "attention": lambda model, ids, name: attention_map(model, ids, list(map(name, ids))),
    "contributions": contributions,
}
_OF_MODEL: dict[str, Callable[[Any], View]] = {"heads": head_scores, "geometry": geometry}


class Watched(NamedTuple):
    """A view that is written while a model trains."""

    name: str  # of its folder
    look: Callable[[Any], View]


def watched(views: Sequence[str], tokenizer: Tokenizer | None, model: Any) -> list[Watched]:
    """Return the views that ``train.inspect`` names: ``VIEW:FILE``, or ``VIEW`` for one without a text.

    Each is tried and drawn for the untrained ``model``, so that a mistake ends the run before it begins.
    :func:`check_watched` finds those mistakes that need no model.

    Raises:
        ConfigError: as :func:`check_watched`, or a run without a tokenizer.
        WordloomError: a model for which the view is undefined, or a text that is empty or too long.
    """
    check_watched(views)
    found: list[Watched] = []
    with TemporaryDirectory() as folder:
        for spec in views:
            try:
                one = _watched(spec, tokenizer, model)
                one.look(model).save(Path(folder) / "view.png")
            except WordloomError as error:
                raise type(error)(f"train.inspect: '{spec}': {error}") from None
            found.append(one)
    return found


def check_watched(views: Sequence[str]) -> None:
    """Raise ConfigError if ``train.inspect`` cannot be right for any model.

    That is an unknown view, one without its file, a file that cannot be read, or two views of one name.
    Raises WordloomError if matplotlib is not installed.
    """
    names: list[str] = []
    for spec in views:
        view, _, file = spec.partition(":")
        if not (view in _OF_TEXT if file else view in _OF_MODEL):
            allowed = [*(f"{name}:FILE" for name in _OF_TEXT), *_OF_MODEL]
            raise ConfigError(f"train.inspect: unknown view {spec!r}; allowed: {', '.join(allowed)}")
        if file:
            _text_of(Path(file))
        names.append(_name_of(spec))
        if names.count(names[-1]) > 1:
            raise ConfigError(f"train.inspect: two views would be written into '{names[-1]}'; name each once")
    if names:
        load_matplotlib()


def _watched(spec: str, tokenizer: Tokenizer | None, model: Any) -> Watched:
    view, _, file = spec.partition(":")
    if not file:
        return Watched(view, _OF_MODEL[view])
    if tokenizer is None:
        raise ConfigError("the view needs a tokenizer, and this run has none")
    ids = tokenizer.prompt_ids(_text_of(Path(file)), specials="text")
    row_of(model, ids)  # raises for a text that is empty or too long
    name = namer(tokenizer)
    return Watched(_name_of(spec), lambda trained: _OF_TEXT[view](trained, ids, name))


def _name_of(spec: str) -> str:
    """Return the name of the folder of a view."""
    view, _, file = spec.partition(":")
    return f"{view}-{Path(file).stem}" if file else view


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"train.inspect: '{file}' cannot be read ({error})") from None


@dataclass(eq=False)
class Watch(Hook):
    """A hook that writes views every ``every`` steps and at the end.

    Each is a picture and a file of JSON in ``folder``/NAME, which are named after the step.
    """

    views: Sequence[Watched]
    every: int
    folder: Path

    def after_step(self, trainer: Trainer, record: StepRecord) -> None:
        if trainer.step < trainer.total_steps and (not self.every or trainer.step % self.every):
            return
        for name, look in self.views:
            place = self.folder / name
            place.mkdir(parents=True, exist_ok=True)
            with finished_weights(trainer) as model:
                view = look(model)
            view.save(place / f"step-{trainer.step:08d}.png")
            facts = {"step": trainer.step, **view.as_dict()}
            write_text(place / f"step-{trainer.step:08d}.json", json.dumps(facts, ensure_ascii=False) + "\n")
