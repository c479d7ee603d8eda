"""The sentences of a corpus, for next-sentence prediction.

Each sentence is prepared like a document.  The origin of its tokens is the file and number of the document
that it comes from, so the sentences of one document share an origin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from wordloom.data.files.source import Source
from wordloom.data.files.stream import Meter
from wordloom.data.text.corpus import Corpus, Part, Tally
from wordloom.data.text.documents import Piece
from wordloom.errors import DataError, did_you_mean

SentenceRule: TypeAlias = Literal["punctuation", "line"]
SENTENCE_RULES = ("punctuation", "line")

# After a full stop and closing quotes or brackets, if no lower-case letter follows (the group); after a blank
# line; and after the full stops of scripts without spaces.
_PUNCTUATION = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s+(\S))|\n[ \t]*\r?\n|[。！？]+[」』”’）]*|[।॥؟۔]""")
_LINE = re.compile(r"\n()")


def sentences(text: str, rule: SentenceRule = "punctuation") -> list[str]:
    """Return the sentences of ``text``, with all characters between them."""
    ends = (_LINE if rule == "line" else _PUNCTUATION).finditer(text)
    cuts = [0, *(end.end() for end in ends if not (end[1] or "").islower()), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if b > a]


class Sentences:
    """A corpus whose documents are the sentences of ``corpus``.

    With the rule ``punctuation``, a sentence ends at a blank line, and after a full stop, question or
    exclamation mark (and closing quotes or brackets) if no lower-case letter follows.  "Mr.  Smith" is cut,
    too: to BERT's authors, a sentence is any stretch of text.  With ``line``, each line is a sentence, as in
    the input of BERT's own code.

    Raises DataError for an unknown rule, and for a corpus of raw bytes.
    """

    def __init__(self, corpus: Corpus, rule: SentenceRule = "punctuation") -> None:
        if rule not in SENTENCE_RULES:
            raise DataError(f"data.sentences {rule!r} is not known; {did_you_mean(rule, SENTENCE_RULES)}")
        if corpus.encoding_errors == "bytes":
            raise DataError("encoding_errors 'bytes' gives no text to find sentences in; use 'replace'")
        self.corpus, self.rule = corpus, rule
        self.encoding_errors, self.split = corpus.encoding_errors, corpus.split
        self.validation_fraction = corpus.validation_fraction
        self.note = "each document is divided into sentences by " + (
            "its lines" if rule == "line" else "its punctuation and blank lines"
        )

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
        """Yield a piece for each sentence that is not white space."""
        unfinished = ""  # the last sentence of a piece, which may continue in the next piece
        for piece in self.corpus.pieces(part, tally=tally, meter=meter, workers=workers):
            texts = sentences(unfinished + str(piece.text), self.rule)
            unfinished = "" if piece.last or not texts else texts.pop()
            for sentence in texts:
                if not sentence.isspace():
                    yield piece._replace(text=sentence, last=True)

    def files(self, part: Part = "all") -> list[Source]:
        return self.corpus.files(part)

    def part_fingerprint(self, part: Part) -> str:
        """Return the fingerprint of the corpus and the rule."""
        rule = {"punctuation": "punctuation-2"}.get(self.rule, self.rule)  # the second version of the rule
        identity = f"sentences/{rule}/{self.corpus.part_fingerprint(part)}"
        return hashlib.sha256(identity.encode()).hexdigest()

    def describe_split(self) -> str:
        return self.corpus.describe_split()
