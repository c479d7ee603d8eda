"""The sentences of a corpus, as what next-sentence prediction is made of.

Each sentence is prepared as if it were a document; the origin of its tokens, file and number of the document,
is that of the document it stands in, so sentences of one document are those of one origin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from wordloom.data.files.source import Source
from wordloom.data.files.stream import EncodingErrors, Meter
from wordloom.data.text.corpus import Corpus, Part, Tally
from wordloom.data.text.documents import Piece
from wordloom.errors import DataError, did_you_mean

__all__ = ["SENTENCE_RULES", "SentenceRule", "Sentences", "sentences"]

SentenceRule: TypeAlias = Literal["punctuation", "line"]
SENTENCE_RULES = ("punctuation", "line")

# Behind a full stop and the quotes or brackets that close after it, where no small letter follows (what does
# is the group); behind a blank line; behind the full stops of scripts that put no space after them.
_PUNCTUATION = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s+(\S))|\n[ \t]*\r?\n|[。！？]+[」』”’）]*|[।॥؟۔]""")
_LINE = re.compile(r"\n()")


def sentences(text: str, rule: SentenceRule = "punctuation") -> list[str]:
    """``text`` cut behind each of its sentences; nothing is lost: joined they are ``text``."""
    found = (_LINE if rule == "line" else _PUNCTUATION).finditer(text)
    cuts = [0, *(match.end() for match in found if not (match[1] or "").islower()), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if b > a]


class Sentences:
    """``corpus`` with each sentence for a document; see the module.

    Args:
        rule: ``punctuation``: a sentence ends behind a full stop, question or exclamation mark and what
            closes after it, where no small letter follows, and at a blank line ("Mr. Smith" is cut too: the
            authors' sentences are any stretches of text).  ``line``: each line is one, as in the input of
            BERT's own code.

    Raises DataError for a rule that is not known, and for a corpus of raw bytes.
    """

    def __init__(self, corpus: Corpus, rule: SentenceRule = "punctuation") -> None:
        if rule not in SENTENCE_RULES:
            raise DataError(f"data.sentences {rule!r} is not known; {did_you_mean(rule, SENTENCE_RULES)}")
        if corpus.encoding_errors == "bytes":
            raise DataError("encoding_errors 'bytes' gives no text to find sentences in; use 'replace'")
        self.corpus, self.rule = corpus, rule
        self.note = "each document is cut into sentences by " + (
            "its lines" if rule == "line" else "its punctuation and blank lines"
        )

    @property
    def encoding_errors(self) -> EncodingErrors:
        return self.corpus.encoding_errors

    @property
    def split(self) -> str:
        return self.corpus.split

    @property
    def validation_fraction(self) -> float:
        return self.corpus.validation_fraction

    @property
    def skipped(self) -> Sequence[str]:
        return self.corpus.skipped

    def pieces(
        self,
        part: Part,
        *,
        tally: Tally | None = None,
        meter: Meter | None = None,
        workers: int | None = None,
    ) -> Iterator[Piece]:
        """As :meth:`wordloom.data.Corpus.pieces`: one for each sentence that is not all white space."""
        rest = ""  # of a document that comes in several pieces: what may go on in the next
        for piece in self.corpus.pieces(part, tally=tally, meter=meter, workers=workers):
            found = sentences(rest + str(piece.text), self.rule)
            rest = "" if piece.last or not found else found.pop()
            for sentence in found:
                if not sentence.isspace():
                    yield piece._replace(text=sentence, last=True)

    def files(self, part: Part = "all") -> list[Source]:
        """The files that hold ``part``."""
        return self.corpus.files(part)

    def part_fingerprint(self, part: Part) -> str:
        """As :meth:`wordloom.data.Corpus.part_fingerprint`, and the rule."""
        rule = {"punctuation": "punctuation-2"}.get(self.rule, self.rule)  # its second wording
        identity = f"sentences/{rule}/{self.corpus.part_fingerprint(part)}"
        return hashlib.sha256(identity.encode()).hexdigest()

    def describe_split(self) -> str:
        """The split in words, for the ledger."""
        return self.corpus.describe_split()
