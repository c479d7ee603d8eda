"""The text of a run of word vectors: how it is divided into texts, and its phrases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from wordloom.data import Corpus
from wordloom.data.files.source import Source
from wordloom.data.sets.expand import expand
from wordloom.data.shards.prepare import SEGMENT
from wordloom.data.shards.segments import Cutter
from wordloom.data.text.corpus import Part
from wordloom.data.text.documents import Piece
from wordloom.errors import DataError
from wordloom.recipe.vectors import VectorRecipe
from wordloom.vectors import WordVocabulary, split_words
from wordloom.vectors.corpus.phrases import Joining, Phrases


def word_corpus(recipe: VectorRecipe) -> WordCorpus:
    """Return the text of ``recipe``; all of it is trained on."""
    d, w = recipe.data, recipe.words
    keep_lines = recipe.vectors.algorithm == "fasttext-supervised"  # its encoder ends every line
    # Nothing is held out.  A split by hash, unlike one of the tail, need not know the length of the text.
    return WordCorpus(
        sources=d.train,
        field="text" if d.field is None else d.field,
        separator=d.separator,
        encoding_errors=d.encoding_errors,
        split="hash",
        validation_fraction=0.0,
        by_line=d.separator is None and not keep_lines,
        words=w.split,
        lower=w.lower,
    )


@dataclass(frozen=True, kw_only=True)
class WordCorpus(Corpus):
    """A corpus of words.

    Args:
        by_line: each line of plain text is a text, unless ``separator`` or the data set differs.
        words, lower: how text is split into words, see :func:`wordloom.vectors.split_words`.
        phrases: the passes that join words.  If there are any, :meth:`pieces` yields joined words with spaces
            between them, which :meth:`encoder` encodes.
    """

    by_line: bool = False
    words: str = "words"
    lower: bool = True
    phrases: list[Phrases] = field(default_factory=list)

    def files(self, part: Part = "all") -> list[Source]:
        files = super().files(part)
        if not self.by_line:
            return files
        return [replace(file, separator=file.separator or "line") for file in files]

    def has(self, names: list[str]) -> bool:
        """Return whether all these files can be read; standard input cannot be read a second time."""
        try:
            return set(names) <= {source.name for source in expand(self.sources) if not source.is_stdin}
        except DataError:
            return False

    def stretches(self) -> Iterator[tuple[list[str], bool]]:
        """Yield some thousand words of a text at a time, and whether they end the text."""
        for words, _, last in self._joined(super().pieces("all")):
            yield words, last

    def texts(self) -> Iterator[str]:
        """Yield all words in strings of similar size, for counting."""
        buffer: list[Any] = []
        size = 0
        pieces = self.pieces("all")
        for piece in pieces if self.phrases else self._split(pieces):  # joining has split them
            buffer.append(piece.text)
            size += len(piece.text)
            if size >= SEGMENT:
                yield "\n".join(buffer)
                buffer, size = [], 0
        if buffer:
            yield "\n".join(buffer)

    def encoder(self, vocabulary: Any) -> Any:
        """Return the encoder of :meth:`pieces` to the ids of ``vocabulary``."""
        if not self.phrases:
            return vocabulary
        return WordVocabulary(vocabulary.words, vocabulary.counts, split="whitespace", lower=False)

    def pieces(self, part: Part, **options: Any) -> Iterator[Piece]:
        pieces = super().pieces(part, **options)
        if not self.phrases:
            yield from pieces
            return
        for words, piece, last in self._joined(pieces):
            if words or last:
                yield piece._replace(text=" ".join([*words, ""]), last=last)

    def _joined(self, pieces: Iterator[Piece]) -> Iterator[tuple[list[str], Piece, bool]]:
        joining = Joining(self.phrases)
        for piece in self._split(pieces):
            assert isinstance(piece.text, str)
            words = split_words(piece.text, split=self.words, lower=self.lower)
            yield joining.push(words, last=piece.last), piece, piece.last

    def _split(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Split long pieces between words."""
        cutter, starts = Cutter(SEGMENT, "words"), True
        for piece in pieces:
            if starts and piece.last and len(piece.text) <= SEGMENT:  # the usual case, a line
                yield piece
                continue
            starts = piece.last
            texts = list(cutter.push(piece.text, last=piece.last))
            for number, text in enumerate(texts, 1):
                yield piece._replace(text=text, last=piece.last and number == len(texts))

    def part_fingerprint(self, part: Part) -> str:
        text = super().part_fingerprint(part)
        if not self.phrases:
            return text
        joins = WordVocabulary([], [], split=self.words, lower=self.lower, phrases=self.phrases)
        return hashlib.sha256(f"{text} {joins.fingerprint}".encode()).hexdigest()
