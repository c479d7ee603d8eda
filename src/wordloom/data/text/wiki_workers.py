"""Processes that strip wiki mark-up, which is far slower than reading or tokenizing it.

They are plain child processes that exchange JSON lines.  With :mod:`multiprocessing`, a fork would be unsafe
beside the tokenizers' threads, and a spawned pool would import the user's script again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

from wordloom.data.text.wiki_markup import strip_markup
from wordloom.errors import DataError
from wordloom.threads import cores

_WORTH_STARTING = 64  # articles; fewer are stripped faster without processes


def stripped(
    articles: Iterator[tuple[str, str]], prefixes: Set[str], workers: int | None = None
) -> Iterator[tuple[str, str | None]]:
    """Yield the title and plain text of each article, in order; None if the parser fails on its mark-up."""
    count = workers or cores()
    first = list(islice(articles, _WORTH_STARTING))
    if count == 1 or len(first) < _WORTH_STARTING:
        yield from ((title, try_strip(markup, prefixes)) for title, markup in chain(first, articles))
        return

    helpers = deque(Stripper() for _ in range(count))

    def strip(title: str, markup: str, links: list[str]) -> tuple[str, str | None]:
        helper = helpers.pop()  # as many helpers as threads, so one is free
        try:
            return title, helper.strip(markup, links)
        finally:
            helpers.append(helper)

    pending: deque[Future[tuple[str, str | None]]] = deque()
    threads = ThreadPoolExecutor(count)
    try:
        for title, markup in chain(first, articles):
            if len(pending) >= 4 * count:
                yield pending.popleft().result()
            pending.append(threads.submit(strip, title, markup, sorted(prefixes)))
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
        for helper in helpers:
            helper.close()


def try_strip(markup: str, prefixes: Set[str]) -> str | None:
    """Return the plain text of ``markup``, or None if the parser fails on it."""
    from mwparserfromhell.parser import ParserError

    try:
        return strip_markup(markup, dropped_links=prefixes)
    except (ParserError, RecursionError):
        return None


class Stripper:
    """A child process that strips mark-up."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[3])  # the child must import the same package
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wordloom.data.text.wiki_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def strip(self, markup: str, links: list[str]) -> str | None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps([markup, links]).encode() + b"\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise DataError(
                f"a process stripping wiki mark-up ended early (exit code {self._process.wait()}); "
                "if memory ran out, ask for fewer workers"
            )
        text: str | None = json.loads(answer)
        return text

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _serve() -> None:
    for line in sys.stdin.buffer:
        markup, links = json.loads(line)
        sys.stdout.buffer.write(json.dumps(try_strip(markup, frozenset(links))).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
