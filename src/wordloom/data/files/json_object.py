"""A JSON object whose fields are read with their types checked, and named in errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from wordloom.data.files.json import json_type, valid_text
from wordloom.data.files.stream import EncodingErrors
from wordloom.errors import DataError


class JsonObject(NamedTuple):
    """A JSON object at ``path`` in ``file``."""

    values: dict[str, Any]
    file: str
    path: str
    errors: EncodingErrors

    def refused(self, field: str, what: str) -> DataError:
        return DataError(f"{self.file}: {self._at(field)}: {what}")

    def _at(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def get(self, field: str, kind: type, expected: str) -> Any:
        """Return the value of ``field``, which has exactly the type ``kind``."""
        if field not in self.values:
            there = ", ".join(map(repr, self.values)) or "none"
            raise self.refused(field, f"is missing; expected {expected}; the fields there are {there}")
        value = self.values[field]
        if type(value) is not kind:  # a boolean is an int to Python
            article = "null" if value is None else f"a {json_type(value)}"
            shown = f" ({value})" if type(value) in (int, float, bool) else ""
            raise self.refused(field, f"is {article}{shown}; expected {expected}")
        return value

    def text(self, field: str, *, missing: str | None = None) -> str:
        """Return a text, or ``missing`` if it is absent or null; with ``missing``, the text may be empty."""
        if missing is not None and self.values.get(field) is None:
            return missing
        value = valid_text(self.get(field, str, "text"), self.errors, f"{self.file}: {self._at(field)}")
        if missing is None and not value.strip():
            raise self.refused(field, "is empty; expected text")
        return value

    def objects(self, field: str) -> Iterator[JsonObject]:
        for i, value in enumerate(self.get(field, list, "a list of objects")):
            path = f"{self._at(field)}[{i}]"
            if not isinstance(value, dict):
                raise DataError(f"{self.file}: {path}: is a {json_type(value)}; expected an object")
            yield self._replace(values=value, path=path)
