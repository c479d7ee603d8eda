"""The text of a run of word vectors: what it is divided by, and its words joined to phrases as it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from wordloom.data import Corpus
from wordloom.data.files.source import Source
from wordloom.data.rows.document_texts import FILE, refuse_file_separator
from wordloom.data.sets.expand import expand
from wordloom.data.shards.prepare import SEGMENT
from wordloom.data.shards.segments import Cutter
from wordloom.data.text.corpus import Part
from wordloom.data.text.documents import Piece
from wordloom.errors import DataError
from wordloom.recipe.vectors import VectorRecipe
from wordloom.vectors import WordVocabulary, split_words
from wordloom.vectors.corpus.phrases import Joining, Phrases

__all__ = ["WordCorpus", "word_corpus"]


def word_corpus(recipe: VectorRecipe) -> WordCorpus:
    """The text that ``recipe`` names; all of it is trained on."""
    d, w = recipe.data, recipe.words
    if d.separator == FILE:
        refuse_file_separator(d.train)
    lines_count = recipe.vectors.algorithm == "fasttext-supervised"  # which ends every line itself
    # By hash, with nothing held out: a split by the tail would read all text once for its length.
    return WordCorpus(
        sources=d.train,
        field="text" if d.field is None else d.field,
        separator=None if d.separator == FILE else d.separator,
        encoding_errors=d.encoding_errors,
        split="hash",
        validation_fraction=0.0,
        by_line=d.separator is None and not lines_count,
        words=w.split,
        lower=w.lower,
    )


@dataclass(frozen=True, kw_only=True)
class WordCorpus(Corpus):
    """A corpus that is read for its words.

    Args:
        by_line: a line of plain text is a text of its own where neither ``separator`` nor a data set says
            otherwise.
        words, lower: how text becomes words, see :func:`wordloom.vectors.split_words`.
        phrases: passes that join words.  Once there are any, :meth:`pieces` has the words that they leave,
            with a space between, and :meth:`encoder` takes those.
    """

    by_line: bool = False
    words: str = "words"
    lower: bool = True
    phrases: list[Phrases] = field(default_factory=list)

    def files(self, part: Part = "all") -> list[Source]:
        found = super().files(part)
        if not self.by_line:
            return found
        return [replace(file, separator=file.separator or "line") for file in found]

    def has(self, names: list[str]) -> bool:
        """Whether files of these names are all there to be read; standard input never is, a second time."""
        try:
            return set(names) <= {source.name for source in expand(self.sources) if not source.is_stdin}
        except DataError:
            return False

    def stretches(self) -> Iterator[tuple[list[str], bool]]:
        """The words of every text, some thousand at a time, and whether they end it."""
        for words, _, last in self._joined(super().pieces("all")):
            yield words, last

    def texts(self) -> Iterator[str]:
        """All words in texts of some size, whatever text they are of: to be counted."""
        held: list[Any] = []
        size = 0
        pieces = self.pieces("all")
        for piece in pieces if self.phrases else self._cut(pieces):  # joining has cut them
            held.append(piece.text)
            size += len(piece.text)
            if size >= SEGMENT:
                yield "\n".join(held)
                held, size = [], 0
        if held:
            yield "\n".join(held)

    def encoder(self, vocabulary: Any) -> Any:
        """What encodes :meth:`pieces` to the ids of ``vocabulary``, which counts their words."""
        if not self.phrases:
            return vocabulary
        return WordVocabulary(vocabulary.words, vocabulary.counts, split="whitespace", lower=False)

    def pieces(self, part: Part, **rest: Any) -> Iterator[Piece]:
        found = super().pieces(part, **rest)
        if not self.phrases:
            yield from found
            return
        for words, piece, last in self._joined(found):
            if words or last:
                yield piece._replace(text=" ".join([*words, ""]), last=last)

    def _joined(self, found: Iterator[Piece]) -> Iterator[tuple[list[str], Piece, bool]]:
        joining = Joining(self.phrases)
        for piece in self._cut(found):
            assert isinstance(piece.text, str)
            words = split_words(piece.text, split=self.words, lower=self.lower)
            yield joining.push(words, last=piece.last), piece, piece.last

    def _cut(self, found: Iterator[Piece]) -> Iterator[Piece]:
        """The same pieces, cut where no word is."""
        cutter, begins = Cutter(SEGMENT, "words"), True
        for piece in found:
            if begins and piece.last and len(piece.text) <= SEGMENT:  # most are lines
                yield piece
                continue
            begins = piece.last
            texts = list(cutter.push(piece.text, last=piece.last))
            for number, text in enumerate(texts, 1):
                yield piece._replace(text=text, last=piece.last and number == len(texts))

    def part_fingerprint(self, part: Part) -> str:
        text = super().part_fingerprint(part)
        if not self.phrases:
            return text
        joins = WordVocabulary([], [], split=self.words, lower=self.lower, phrases=self.phrases)
        return hashlib.sha256(f"{text} {joins.fingerprint}".encode()).hexdigest()
