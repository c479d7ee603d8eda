"""The files of the named data sets: path, size and sha256 of the raw content, URL."""

from __future__ import annotations

from importlib.resources import files

from wordloom.data.sets.info import DatasetFile

GITHUB = "https://github.com/"

_KNOWN: dict[str, tuple[int | None, str | None]] = {}
for _line in (files("wordloom.data") / "identities.tsv").read_text(encoding="utf-8").splitlines()[1:]:
    _path, _bytes, _sha256 = _line.split("\t")
    _KNOWN[_path] = int(_bytes) if _bytes else None, _sha256


def file(path: str, origin: str | None = None) -> DatasetFile:
    """Return the file at ``path``, with its known size and sha256; ``origin`` is a URL, or below GitHub."""
    size, sha256 = _KNOWN.get(path, (None, None))
    url = origin if origin is None or "://" in origin else GITHUB + origin
    return DatasetFile(path=path, bytes=size, sha256=sha256, url=url)


def parts(path: str, origin: str | None = None, *names: str) -> dict[str, tuple[DatasetFile, ...]]:
    """Return the parts of a set with a file each; ``{}`` in ``path`` and ``origin`` is the name of the part.

    Without ``names`` there is one part, ``all``.
    """
    return {name: (file(path.format(name), origin and origin.format(name)),) for name in names or ("all",)}
