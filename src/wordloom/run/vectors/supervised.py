"""A training run of fastText's text classifier: count words and labels, prepare ids, train, save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wordloom.data import TokenShards
from wordloom.data.shards.prepare import SEGMENT
from wordloom.data.shards.segments import Cutter
from wordloom.run.vectors.vector_run import VectorRun, check_memory
from wordloom.vectors import save_fasttext
from wordloom.vectors.fasttext.classifier_trainer import SupervisedTrainer, cut_lines
from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary


class SupervisedRun(VectorRun):
    """A run that writes ``model.bin`` in fastText's format."""

    def _vocabulary(self) -> LabelledVocabulary:
        w, prefix = self.recipe.words, self.settings.label_prefix
        if self.run.resume and (self.path / "vocabulary.tsv").exists():
            return LabelledVocabulary.load(self.path, lower=w.lower, label_prefix=prefix)
        with self.progress.counting("counting words") as show:
            vocabulary = LabelledVocabulary.count(
                self._lines(),
                min_count=w.min_count,
                max_words=w.max_words,
                lower=w.lower,
                label_prefix=prefix,
                progress=show,
            )
        rare = f", and {len(vocabulary.rare):,} rarer ones without a row" if vocabulary.rare else ""
        self.progress.say(
            f"vocabulary  {len(vocabulary.words):,} words{rare}, {len(vocabulary.labels):,} labels "
            f"(min_count {w.min_count})"
        )
        return vocabulary

    def _lines(self) -> Iterator[str]:
        """Yield the text in pieces that end between words; a document's last line gets a line break too."""
        cutter = Cutter(SEGMENT, "words")
        for piece in self.corpus.pieces("all"):
            last = ""
            for text in cutter.push(piece.text, last=piece.last):
                assert isinstance(text, str)
                yield text
                last = text
            if piece.last and not last.endswith("\n"):
                yield "\n"

    def _trainer(self, vocabulary: LabelledVocabulary, shards: TokenShards) -> SupervisedTrainer:
        s, V, L = self.settings, len(vocabulary.words), len(vocabulary.labels)
        rows = V + (s.buckets if self._subwords() or s.word_ngrams > 1 else 0)
        check_memory(s.dim, rows + L, f"{rows:,} input rows and {L:,} label rows")
        return SupervisedTrainer(
            cut_lines(shards, vocabulary.eos_id),
            vocabulary,
            s,
            seed=self.recipe.seed,
            threads=s.threads,
            min_count=self.recipe.words.min_count,
        )

    def _save_vectors(self, trainer: Any, vocabulary: LabelledVocabulary) -> None:
        save_fasttext(trainer.model(), self.path / "model.bin")
