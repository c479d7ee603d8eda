"""Requests to a remote file system: its package, retries with growing waits, and errors in one line."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from wordloom.errors import DataError

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further try
_GONE = (404, 410)
_WORTH_RETRYING = (408, 425, 429)  # of the errors that HTTP blames on the client

_log = logging.getLogger(__name__)
_jitter = random.SystemRandom()  # many ranks must not retry at the same moment; seeds are not touched

Result = TypeVar("Result")


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises DataError if fsspec or the package of the protocol is missing, and for an unknown protocol.
    """
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"'{url}': reading a URL needs the package fsspec: pip install fsspec aiohttp"
        ) from None
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise DataError(
            f"'{url}': {protocol} needs another package: {one_line(error)} (with pip install)"
        ) from None
    except ValueError as error:
        raise DataError(
            f"'{url}' cannot be read: {one_line(error)}; allowed: the protocols of fsspec, such as s3, gs, "
            "https, memory, or a folder"
        ) from None
    return system, str(path).rstrip("/")


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line, with its type if the message says nothing."""
    text = " ".join(str(error).split())
    return text if len(text) > 3 else f"{type(error).__name__} {text}".strip()


def is_missing(error: BaseException) -> bool:
    """Return whether a file does not exist; fsspec reports refused connections as missing files, too."""
    if not isinstance(error, FileNotFoundError):
        return False
    cause = error.__cause__
    if (status := getattr(cause, "status", None)) is not None:
        return status in _GONE
    return not (cause is not None and _is_of_network(cause))


def _is_of_network(error: BaseException) -> bool:
    connection = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    return connection or isinstance(error, TimeoutError) or type(error).__module__.startswith("aiohttp")


def _is_final(error: BaseException) -> bool:
    """Return whether another try gives the same error."""
    if isinstance(error, DataError | PermissionError | NotImplementedError | TypeError | ImportError):
        return True
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status not in _WORTH_RETRYING
    return is_missing(error)


def retried(action: Callable[[], Result], url: str) -> Result:
    """Return ``action()``, tried several times with growing waits if the network fails.

    Raises FileNotFoundError for a missing file, and DataError for any other error that remains.
    """
    for n, wait in enumerate((*WAITS, None), 1):
        try:
            return action()
        except Exception as error:
            if is_missing(error):
                raise FileNotFoundError(url) from None
            if isinstance(error, DataError):
                raise
            if _is_final(error):
                raise DataError(
                    f"'{url}' cannot be read: {one_line(error)}; check the address and access"
                ) from None
            if wait is None:
                raise DataError(
                    f"'{url}' cannot be read: {one_line(error)}; tried {n} times in {sum(WAITS):g} seconds; "
                    "check the network, then start again (a run continues with --resume)"
                ) from None
            _log.warning("'%s': %s; trying again in %g s", url, one_line(error), wait)
            time.sleep(wait * _jitter.uniform(0.75, 1.25))
    raise AssertionError("the last try returns or raises")
