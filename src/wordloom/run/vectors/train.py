"""Train word vectors, or fastText's text classifier, from a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wordloom.data import TokenShards
from wordloom.data.shards.prepare import SEGMENT
from wordloom.data.shards.segments import Cutter
from wordloom.errors import RecipeError
from wordloom.progress import TrainingProgress
from wordloom.recipe.vectors import VectorRecipe, load_vector_recipe
from wordloom.run.folder import RunFolder, refuse_changes
from wordloom.run.vectors.vector_run import VectorResult, VectorRun, check_memory
from wordloom.vectors import save_fasttext
from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary
from wordloom.vectors.fasttext.trainer import SupervisedTrainer, cut_lines

# Settings that may change on resume.  Threads and save_minutes do not change the vectors; another device
# continues with other random numbers.
_FREE_ON_RESUME = ("vectors.threads", "vectors.device", "vectors.save_minutes")


def train_vectors(
    recipe: str | Path | VectorRecipe | dict[str, Any] | None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: TrainingProgress | None = None,
) -> VectorResult:
    """Train the word vectors of ``recipe`` and write them to the folder ``out`` (default: ``runs/NAME``).

    With ``resume`` the recipe may be None: the folder's recipe is used.

    :func:`wordloom.vectors.load_vectors` opens the finished folder.  The folder also has ``recipe.toml``,
    ``metrics.jsonl``, ``vocabulary.tsv`` and, for resuming, ``checkpoints/``.  If a signal stops the run
    during training, the folder holds the vectors as they are then.

    Raises WordloomError for mistakes that the user can correct, NonFiniteError when the vectors diverge.
    """
    progress = progress or TrainingProgress()
    loaded = None if recipe is None else load_vector_recipe(recipe, overrides, say=progress.say)
    if out is not None and (loaded is not None or resume):
        path = Path(out)
    elif loaded is not None:
        path = Path("runs") / loaded.name
    else:
        raise RecipeError("there is no run to resume. Give its folder: --out runs/NAME --resume")
    with RunFolder(path, resume=resume, force=force) as folder:
        loaded = loaded or load_vector_recipe(path / "recipe.toml", overrides)
        if resume and "metrics.jsonl" in folder.missing():
            progress.say(f"{path / 'metrics.jsonl'} is missing: a new, empty one is written")
        if resume:
            refuse_changes(loaded, folder.saved_recipe(VectorRecipe), free=_FREE_ON_RESUME)
        kind = SupervisedRun if loaded.vectors.algorithm == "fasttext-supervised" else VectorRun
        return kind(loaded, folder, progress).train()


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
