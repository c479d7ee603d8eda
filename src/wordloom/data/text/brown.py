"""The Brown corpus as NLTK packs it: a zip of 500 files of ``word/tag`` tokens, one sentence per line."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator

from wordloom.data.files.source import Source
from wordloom.errors import DataError

_MEMBER = re.compile(r"brown/c[a-r]\d\d$")


def brown_texts(file: Source) -> Iterator[str]:
    """Yield the 500 documents without tags: spaces between tokens, line breaks between sentences."""
    for _, lines in _members(file):
        sentences = [" ".join(token.rpartition("/")[0] for token in line.split()) for line in lines]
        yield "\n".join(filter(None, sentences))


def brown_sentences(file: Source) -> Iterator[tuple[str, int, list[tuple[str, str]]]]:
    """Yield each sentence: its file in the zip, its line, and its words with their tags."""
    for name, lines in _members(file):
        for number, line in enumerate(lines, 1):
            parted = [token.rpartition("/") for token in line.split()]
            if parted:
                yield name, number, [(word, tag) for word, _, tag in parted]


def _members(file: Source) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the lines of each file."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            for name in sorted(filter(_MEMBER.match, archive.namelist())):
                yield name, archive.read(name).decode("ascii").splitlines()
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise DataError(f"{file.name}: not the Brown corpus archive ({error}); download it again") from error
