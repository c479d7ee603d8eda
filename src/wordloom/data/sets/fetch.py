"""Find and download the files of named data sets.

The folder ``$WORDLOOM_DATA`` comes first, then earlier downloads.  Only :func:`fetch` uses the network.
Hashes are sha256 of the decompressed content, so a recompressed copy and a download have equal hashes.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple
from zipfile import BadZipFile

from wordloom.data.cache import cache_folder
from wordloom.data.files.source import Source, describe
from wordloom.data.files.stream import blocks
from wordloom.data.sets.catalogue import DATASETS
from wordloom.data.sets.derived import content
from wordloom.data.sets.info import SOURCES, UNPACKED, DatasetFile, DatasetInfo
from wordloom.data.sets.python_docs import embedded_file
from wordloom.errors import DataError, did_you_mean
from wordloom.files import write_bytes

_TIMEOUT = 60  # seconds without an answer


class Fetched(NamedTuple):
    """A local file of a data set; it is ``verified`` if its hash equals a known hash."""

    path: Path
    bytes: int
    sha256: str
    state: Literal["verified", "unverified"]
    downloaded: bool


def names_dataset(given: str) -> bool:
    """Return whether ``given`` is ``NAME`` or ``NAME/PART`` of a known data set."""
    name, _, part = given.partition("/")
    return name in DATASETS and "/" not in part


def files_of(given: str) -> tuple[DatasetInfo, str, tuple[DatasetFile, ...]]:
    """Return the set, the part and the files of ``NAME`` or ``NAME/PART``.

    Raises DataError for an unknown set or part, a missing part, and a set that may not be distributed.
    """
    name, _, part = given.partition("/")
    if name not in DATASETS:
        raise DataError(f"no data set '{name}'; {did_you_mean(name, DATASETS)}")
    info = DATASETS[name]
    if not info.parts:
        raise DataError(f"'{name}' ({info.title}): {info.notes}")
    if not part:
        if len(info.parts) > 1:
            raise DataError(f"'{name}' has parts; say which: {', '.join(f'{name}/{p}' for p in info.parts)}")
        part = next(iter(info.parts))
    if part not in info.parts:
        raise DataError(f"'{name}' has no part '{part}'; {did_you_mean(part, info.parts)}")
    return info, part, info.parts[part]


def resolve(given: str, *, cache: str | os.PathLike[str] | None = None) -> list[Source]:
    """The local files of ``NAME`` or ``NAME/PART`` with their reader settings; nothing is downloaded.

    Raises:
        DataError: as :func:`files_of`; the set is not running text; or a file is neither in
            ``$WORDLOOM_DATA`` nor downloaded, or has another size than it should.
    """
    info, _, files = files_of(given)
    if info.format is None:
        raise DataError(f"'{given}' ({info.task}) is not running text but {info.layout}; it is not a corpus")
    found = []
    for file in files:
        path = str(_local(given, file, cache))
        source = describe(path) if info.format != "brown" else Source(path=path, name=path, format="brown")
        found.append(replace(source, format=info.format, field=info.field, separator=info.separator))
    return found


def local_files(given: str, *, cache: str | os.PathLike[str] | None = None) -> list[Path]:
    """The local files of any ``NAME`` or ``NAME/PART``, running text or not; nothing is downloaded."""
    return [_local(given, file, cache) for file in files_of(given)[2]]


def _local(given: str, file: DatasetFile, cache: str | os.PathLike[str] | None) -> Path:
    path = _find(file, cache)
    if path is None:
        root = os.environ.get("WORDLOOM_DATA")
        looked = f"$WORDLOOM_DATA ({root})" if root else "$WORDLOOM_DATA (not set)"
        raise DataError(
            f"data set '{given}': '{file.path}' is not in {looked} nor downloaded; "
            f"run `wordloom data fetch {given}`"
        )
    if path.suffix not in UNPACKED and file.bytes is not None and path.stat().st_size != file.bytes:
        raise DataError(
            f"data set '{given}': '{path}' has {path.stat().st_size:,} bytes, not {file.bytes:,}; "
            "remove it and fetch it again"
        )
    return path


def download_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of downloads."""
    return cache_folder(cache) / "datasets"


def _find(file: DatasetFile, cache: str | os.PathLike[str] | None) -> Path | None:
    if file.made_here:
        return embedded_file(download_folder(cache), file.path)
    candidates = []
    if root := os.environ.get("WORDLOOM_DATA"):
        candidates = [Path(root) / file.path, Path(root) / file.download_name]
    candidates.append(download_folder(cache) / file.download_name)
    return next((path for path in candidates if path.is_file()), None)


def is_here(given: str, *, cache: str | os.PathLike[str] | None = None) -> bool:
    """Return whether all files of ``NAME/PART`` are in ``$WORDLOOM_DATA`` or downloaded."""
    return all(file.made_here or _find(file, cache) is not None for file in files_of(given)[2])


def fetch(
    given: str, *, cache: str | os.PathLike[str] | None = None, progress: Callable[[str], None] | None = None
) -> list[Fetched]:
    """Download the files of ``NAME`` (all parts) or ``NAME/PART`` if they are missing, and check them.

    Files in ``$WORDLOOM_DATA`` and earlier downloads are checked, not fetched again.  A download that breaks
    off or has a wrong hash leaves no file.  Derived files are written from the files that they come from;
    archives that nothing else needs are removed afterwards.

    Raises DataError as :func:`files_of`, without a network, and for a truncated file or another hash.
    """
    whole_set = given in DATASETS and DATASETS[given].parts
    files = DATASETS[given].files if whole_set else files_of(given)[2]
    missing = [file for file in files if _find(file, cache) is None]
    fetched = dict.fromkeys(source for file in missing for source in file.sources)  # each once
    archives = [
        download_folder(cache) / file.download_name for file in fetched if file.path.startswith(SOURCES)
    ]
    try:
        sources = {source: _fetch(given, source, {}, cache, progress).path for source in fetched}
        found = [_fetch(given, file, sources, cache, progress) for file in files]
    except DataError:  # a source with other contents would fail again
        _remove(archives)
        raise
    _remove(archives)
    return found


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _fetch(
    given: str,
    file: DatasetFile,
    sources: Mapping[DatasetFile, Path],
    cache: str | os.PathLike[str] | None,
    progress: Callable[[str], None] | None,
) -> Fetched:
    """Return a checked file; it is downloaded, or written from ``sources``, if it is missing."""
    say = progress or (lambda line: None)
    path = _find(file, cache)
    downloaded = path is None
    if path is None:
        path = download_folder(cache) / file.download_name
        if file.url is None:
            say(f"writing {path}")
            _write(given, file, [sources[source] for source in file.sources], path)
        else:
            say(f"downloading {file.url}")
            _download(given, file.url, file, path)
    size, sha256 = _identify(path)
    if file.sha256 is not None and sha256 != file.sha256:
        where, fate = str(path), "remove it, fetch it again"
        if downloaded:
            path.unlink()
            where, fate = file.url or f"what is written from {file.sources[0].url}", "it was not kept"
        raise DataError(f"data set '{given}': {where} has sha256 {sha256}, not {file.sha256}; {fate}")
    return Fetched(path, size, sha256, "verified" if file.sha256 else "unverified", downloaded)


def _write(given: str, file: DatasetFile, sources: list[Path], target: Path) -> None:
    """Write a derived file; raises DataError if its sources have other contents than they should."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_bytes(target, content(file.path, sources))
    except (ValueError, LookupError, TypeError, BadZipFile) as error:
        raise DataError(
            f"data set '{given}': '{file.path}' cannot be written from {file.sources[0].url}, which has "
            f"other contents ({type(error).__name__}: {error}); put the file into the folder that "
            "$WORDLOOM_DATA names"
        ) from error


def _identify(path: Path) -> tuple[int, str]:
    """Return size and sha256 of the raw bytes."""
    source = Source(path=str(path), name=str(path), format="text", compression=UNPACKED.get(path.suffix))
    digest, size = hashlib.sha256(), 0
    for block in blocks(source):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()


def _download(given: str, url: str, file: DatasetFile, target: Path) -> None:
    import pooch

    pooch.get_logger().setLevel(logging.ERROR)  # its lines repeat the progress reported here
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The hash of a compressed download is that of its raw content, which is checked afterwards.
        known = file.sha256 if target.suffix not in UNPACKED else None
        pooch.retrieve(
            url,
            known_hash=known and f"sha256:{known}",
            fname=target.name,
            path=target.parent,
            downloader=pooch.HTTPDownloader(timeout=_TIMEOUT),
        )
    except ValueError as error:  # raised by pooch for a wrong hash
        raise DataError(
            f"data set '{given}': what {url} sends has not the sha256 {file.sha256}; "
            "it is damaged or was changed, and was not kept"
        ) from error
    except OSError as error:  # requests' errors are among them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"data set '{given}': {url} cannot be downloaded ({reason[:160]}); check the network, "
            f"or put the file at '{file.path}' in the folder that $WORDLOOM_DATA names"
        ) from error
