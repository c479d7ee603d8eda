"""Tables of a recipe: strict settings classes whose fields say when they have an effect.

A field that depends on another key carries :class:`OnlyIf` in its annotation.  A table whose keys depend on a
choice made elsewhere, as ``[data]`` depends on ``train.objective``, is a union of classes and carries
:class:`OneOf`.  :func:`unused_keys` reads both; it is the only place that decides that a key has no effect.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

_UNKNOWN = object()  # the value of a key that the table does not have


class Table(BaseModel):
    """A recipe, or one of its tables: it refuses unknown keys, converts no value and is immutable.

    The docstring below a field describes the key; the reference page of all keys is made of these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without those that are None."""
        return self.model_dump(mode="json", exclude_none=True)


@dataclass(frozen=True)
class OnlyIf:
    """The condition under which a field has an effect, as a part of its annotation.

    Attributes:
        key: the key that decides: a sibling in the same table, or a full name such as ``train.objective``.  A
            sibling that the table does not have decides nothing.
        values: the values of ``key`` that give the field an effect; empty for any but None, false and 0.
        excluded: instead of ``values``, those that give it none.
        instead: the last part of the error message.
    """

    key: str
    values: tuple[object, ...] = ()
    excluded: tuple[object, ...] = ()
    instead: str = "leave it out"

    def holds(self, value: object) -> bool:
        """Return whether ``key`` = ``value`` gives the field an effect."""
        if self.excluded:
            return value not in self.excluded
        return value is _UNKNOWN or (value in self.values if self.values else bool(value))


@dataclass(frozen=True)
class OneOf:
    """The classes of a table, by the value of the ``key`` that chooses among them."""

    key: str
    classes: Mapping[str, type[Table]]

    def field(self, name: str) -> tuple[FieldInfo | None, tuple[str, ...]]:
        """Return the field called ``name`` in any class, and the values of ``key`` whose class has it."""
        owners = {value: kind for value, kind in self.classes.items() if name in kind.model_fields}
        fields = [kind.model_fields[name] for kind in owners.values()]
        return (fields[0] if fields else None), tuple(owners)


@dataclass(frozen=True, kw_only=True)
class UnusedKey:
    """A key that differs from its default and has no effect."""

    name: str
    value: Any
    decides: str  # the full name of the key that decides
    decided: Any
    condition: OnlyIf

    @property
    def reason(self) -> str:
        """The reason why the key has no effect."""
        wanted = self.condition.values
        if not wanted and not self.condition.excluded:
            return f"it has no effect without {self.decides}"
        if wanted and wanted[0] in (None, False):
            return f"it has no effect beside {self.decides}"
        return f"it is not a setting of {self.decides} {self.decided!r}"

    def __str__(self) -> str:
        wanted, message = self.condition.values, self.name + self.reason.removeprefix("it")
        if not wanted and not self.condition.excluded:
            return f"{message}; set {self.decides}, or leave it out"
        if wanted and wanted[0] in (None, False):
            return f"{message}; leave one of them out"
        whose = f" it is for {_any_of(wanted)};" if 0 < len(wanted) <= 6 else ""
        return f"{message};{whose} {self.condition.instead}"


def _any_of(values: tuple[object, ...]) -> str:
    *first, last = map(repr, values)
    return f"{', '.join(first)} or {last}" if first else last


def union_of(field: FieldInfo) -> OneOf | None:
    """Return the union of classes that the table in ``field`` may have, if it is one."""
    return next((part for part in field.metadata if isinstance(part, OneOf)), None)


def table_of(field: FieldInfo) -> type[Table] | None:
    """Return the class of the table in ``field``, the common one of a union; None for a plain value."""
    for part in (field.annotation, *get_args(field.annotation)):
        if isinstance(part, type) and issubclass(part, Table):
            return part
    return None


def descriptions(table: type[Table]) -> dict[str, str]:
    """Return the description of each field: the docstring below it in the class."""
    texts: dict[str, str] = {}
    for kind in reversed([each for each in table.__mro__ if issubclass(each, Table)]):
        texts.update(_own_descriptions(kind))
    return texts


@functools.cache
def _own_descriptions(table: type[Table]) -> dict[str, str]:
    """Return the descriptions of the fields that ``table`` adds to those of its bases."""
    texts: dict[str, str] = {}
    (definition,) = ast.parse(inspect.getsource(table)).body  # parses the whole file, so once for each class
    assert isinstance(definition, ast.ClassDef)
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            texts[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return texts


def keys_of(recipe: type[Table], table: Sequence[int | str]) -> list[str]:
    """Return the keys of a recipe, or of one of its tables, with those of all classes of a union."""
    if not table:
        return list(recipe.model_fields)
    field = recipe.model_fields.get(str(table[0]))
    if field is None or (kind := table_of(field)) is None:
        return []
    union = union_of(field)
    kinds = [kind] if union is None else union.classes.values()
    return list(dict.fromkeys(name for each in kinds for name in each.model_fields))


def unused_keys(
    recipe: type[Table], values: Mapping[str, Any], known: Mapping[str, Any] | None = None
) -> Iterator[UnusedKey]:
    """Yield the keys of ``values`` (the tables of a ``recipe``) that another key leaves without effect.

    A key at its default value is never reported: saved recipes hold every default.  ``known`` holds the
    values of deciding keys that stand elsewhere, such as the ``model.family`` of a checkpoint.
    """
    return _unused(recipe, _plain(values), "", (), (recipe, _plain(values), known or {}))


def _unused(
    table: type[Table],
    values: Mapping[str, Any],
    path: str,
    outer: tuple[OnlyIf, ...],
    root: tuple[type[Table], Mapping[str, Any], Mapping[str, Any]],
    union: OneOf | None = None,
) -> Iterator[UnusedKey]:
    for name, value in values.items():
        field, conditions = table.model_fields.get(name), outer
        if field is None and union is not None:
            field, owners = union.field(name)
            conditions = (*outer, OnlyIf(union.key, owners))
        if field is None:
            continue  # pydantic refuses it
        conditions += tuple(part for part in field.metadata if isinstance(part, OnlyIf))
        inner, inner_union = _chosen(field, root)
        if inner is not None and isinstance(_plain(value), Mapping):
            yield from _unused(inner, _plain(value), f"{path}{name}.", conditions, root, inner_union)
        elif value != field.get_default(call_default_factory=True):
            for condition in conditions:
                decides = condition.key if "." in condition.key else path + condition.key
                decided = (
                    _value(decides, *root) if "." in condition.key else _in(table, values, condition.key)
                )
                if not condition.holds(decided):
                    yield UnusedKey(
                        name=path + name, value=value, decides=decides, decided=decided, condition=condition
                    )
                    break


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Table) else value


def _chosen(
    field: FieldInfo, root: tuple[type[Table], Mapping[str, Any], Mapping[str, Any]]
) -> tuple[type[Table] | None, OneOf | None]:
    """Return the class of the table in ``field``, and the union it belongs to."""
    union, table = union_of(field), table_of(field)
    if union is None:
        return table, None
    value = _value(union.key, *root)
    return (union.classes.get(value, table) if isinstance(value, str) else table), union


def _value(key: str, recipe: type[Table], values: Mapping[str, Any], known: Mapping[str, Any] = {}) -> Any:
    """Return the value of ``table.key`` in ``values``, its default where it is left out."""
    if key in known:
        return known[key]
    name, _, inner = key.partition(".")
    field, given = recipe.model_fields[name], _plain(values.get(name, {}))
    if not isinstance(given, Mapping):
        return _UNKNOWN  # pydantic refuses it
    table = table_of(field)
    return given.get(inner) if table is None else _in(table, given, inner)


def _in(table: type[Table], values: Mapping[str, Any], key: str) -> Any:
    field = table.model_fields.get(key)
    return _UNKNOWN if field is None else values.get(key, field.default)
