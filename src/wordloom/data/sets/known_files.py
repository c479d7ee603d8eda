"""Files of the named data sets: path, size and sha256 of raw content, URL."""

from __future__ import annotations

from importlib.resources import files

from wordloom.data.sets.info import DatasetFile

GITHUB = "https://github.com/"

_KNOWN: dict[str, tuple[int, str]] = {}
for _line in (files("wordloom.data") / "identities.tsv").read_text(encoding="utf-8").splitlines()[1:]:
    _path, _bytes, _sha256 = _line.split("\t")
    _KNOWN[_path] = int(_bytes), _sha256


def here(path: str, origin: str | None = None) -> DatasetFile:
    """A file whose raw content is known, and where it was taken from below github.com."""
    size, sha256 = _KNOWN[path]
    return DatasetFile(path=path, bytes=size, sha256=sha256, url=GITHUB + origin if origin else None)


def away(path: str, url: str, size: int | None = None, sha256: str | None = None) -> DatasetFile:
    """A file of the network; its sha256 is ``None`` where no reliable statement of it is known."""
    return DatasetFile(path=path, url=url, bytes=size, sha256=sha256)
