"""Train word vectors by a recipe: count words, prepare ids, learn, keep what would be lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.data import TokenShards, prepare
from wordloom.errors import CheckpointError, DataError, RecipeError
from wordloom.files import write_text
from wordloom.recipe.vectors import VectorRecipe, load_vector_recipe
from wordloom.run.folder import RunFolder, refuse_changes
from wordloom.run.progress import Clock, TrainingProgress
from wordloom.run.vectors.device import vector_device
from wordloom.run.vectors.memory import check_memory, out_of_memory
from wordloom.run.vectors.word_corpus import word_corpus
from wordloom.training.hooks import cut_metrics
from wordloom.training.stopping import sigterm_interrupts, stop_on_signals
from wordloom.vectors import (
    Cooccurrences,
    FastTextVectors,
    GloVe,
    KeyedVectors,
    Subwords,
    WordVocabulary,
    count_cooccurrences,
    save_vectors,
)
from wordloom.vectors.corpus.phrases import Phrases
from wordloom.vectors.files.saved_state import SavedState
from wordloom.vectors.glove.trainer import GloVeTrainer
from wordloom.vectors.word2vec.torch_trainer import TorchWordTrainer
from wordloom.vectors.word2vec.trainer import TrainingCorpus, WordTrainer

__all__ = ["VectorResult", "VectorRun", "subword_rows", "train_vectors"]

# Settings that may change on resume: they decide how fast, not what is learnt, though on another device it
# comes out by other random numbers.
_FREE_ON_RESUME = ("vectors.threads", "vectors.device", "vectors.save_minutes")

_NOT_THE_ONE = "{} is not the one {} was trained with; put it back, or choose another --out"


@dataclass(frozen=True, kw_only=True)
class VectorResult:
    """Where the run is, how far it came, and what it saw.

    Attributes:
        folder: the run's.
        job, jobs: how many jobs of how many are done; both 0 where it was stopped before training began.
        stopped: whether it was, before its end.
        words_per_second: (GloVe: records) of training alone, over this process's part of the run but its
            first portion, which the compiler has its share of; None where there was no other.
        loss: the last.
    """

    folder: Path
    job: int
    jobs: int
    stopped: bool
    words_per_second: float | None
    loss: float | None


def train_vectors(
    recipe: str | Path | VectorRecipe | dict[str, Any] | None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: TrainingProgress | None = None,
) -> VectorResult:
    """Train the word vectors of ``recipe`` into the folder ``out`` (``runs/NAME`` by default).

    With ``resume`` the recipe may be None: that of the run in ``out``.

    The finished folder is what :func:`wordloom.vectors.load_vectors` opens, with ``recipe.toml``,
    ``metrics.jsonl``, ``vocabulary.tsv`` and, for going on, ``checkpoints/``.  So is that of a run that a
    signal stopped while it trained, with what was learnt so far.

    Raises WordloomError for whatever the user can put right, NonFiniteError when the vectors diverge.
    """
    progress = progress or TrainingProgress()
    loaded = None if recipe is None else load_vector_recipe(recipe, overrides, say=progress.say)
    if out is not None and (loaded is not None or resume):
        path = Path(out)
    elif loaded is not None:
        path = Path("runs") / loaded.name
    else:
        raise RecipeError("which run is to go on? Give its folder: --out runs/NAME --resume")
    with RunFolder(path, resume=resume, force=force) as folder:
        loaded = loaded or load_vector_recipe(path / "recipe.toml", overrides)
        if resume and "metrics.jsonl" in folder.missing():
            progress.say(f"{path / 'metrics.jsonl'} is missing: it starts again, empty")
        if resume:
            refuse_changes(loaded, folder.saved_recipe(VectorRecipe), free=_FREE_ON_RESUME)
        return _kind_of_run(loaded)(loaded, folder, progress).train()


Trainer = WordTrainer | TorchWordTrainer | GloVeTrainer


def _kind_of_run(recipe: VectorRecipe) -> type[VectorRun]:
    if recipe.vectors.algorithm != "fasttext-supervised":
        return VectorRun
    from wordloom.run.vectors.supervised import SupervisedRun

    return SupervisedRun


class VectorRun:
    """One run: words are counted, ids prepared, vectors learnt, and the run's folder filled."""

    def __init__(self, recipe: VectorRecipe, run: RunFolder, progress: TrainingProgress) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.path = run.path
        self.state = SavedState(run.path)
        self.corpus = word_corpus(recipe)
        self.vocabulary: Any = None
        self.shards: TokenShards | None = None

    def train(self) -> VectorResult:
        try:
            with sigterm_interrupts():
                return self._train()
        except KeyboardInterrupt:  # outside the portions, which are finished
            if self.run.force and not self.run.begun and (self.path / "recipe.toml").exists():
                self.progress.say(f"stopped before training began: the run in {self.path} is as it was")
                raise
            return self._interrupted()

    def _train(self) -> VectorResult:
        say, s = self.progress.say, self.recipe.vectors.settled()
        check_memory(s.dim, 2, "even of one word")  # first of all: words are counted for minutes
        self.device, why = vector_device(s)
        vocabulary = self.vocabulary = self._vocabulary()
        shards = self.shards = self._ids(self.corpus.encoder(vocabulary))
        texts = len(shards.ends)
        say(f"words       {len(shards):,} to train on, in {texts:,} text{'s' * (texts > 1)}")
        with out_of_memory(s.dim, "vectors.memory_mb" if s.algorithm == "glove" else "vectors.threads"):
            trainer = self._trainer(vocabulary, shards, s)
        facts = {
            "data": shards.fingerprint,
            "vocabulary": vocabulary.fingerprint,
            "device": trainer.device,
        }
        self._restore(trainer, facts)
        self._begin()
        cut_metrics(self.path / "metrics.jsonl", trainer.job, key="job")
        say(f"running     {trainer.kernel}{why}")
        if trainer.job:
            say(f"resuming at {trainer.job / trainer.jobs:.0%}: job {trainer.job:,} of {trainer.jobs:,}")
        stopped, rate, loss = self._loop(trainer, facts)
        if not trainer.job:
            return self._interrupted()
        self._finish(trainer, vocabulary)
        return VectorResult(
            folder=self.path,
            job=trainer.job,
            jobs=trainer.jobs,
            stopped=stopped,
            words_per_second=rate,
            loss=loss,
        )

    def _interrupted(self) -> VectorResult:
        """Keep what there is to go on with."""
        self._begin()
        job, jobs = self.state.progress()
        if not job:
            kept = "settings" if self.vocabulary is None else "settings and vocabulary"
            self.progress.say(f"kept        {kept}; what was under way begins again")
        return VectorResult(
            folder=self.path, job=job, jobs=jobs, stopped=True, words_per_second=None, loss=None
        )

    def _begin(self) -> None:
        """Leave the run's marks, and whatever is known by now that going on would have to find out again."""
        if not self.run.resume and not self.run.begun:
            self.run.begin(self.recipe, self._ledger())
        elif self.shards is not None and self._begun_with() is None:
            write_text(self.path / "ledger.json", self._ledger())
        if self.vocabulary is not None and not (self.path / "vocabulary.tsv").exists():
            self.vocabulary.save(self.path)

    def _ledger(self) -> str:
        """The account of the text, and where its ids are."""
        if self.shards is None:
            return "{}"
        files = [source.name for source in self.corpus.files()]
        ids = {"folder": str(self.shards.folder), "fingerprint": self.shards.fingerprint, "files": files}
        return json.dumps({"train": self.shards.ledger.as_dict(), "ids": ids}, indent=1)

    # -- words -------------------------------------------------------------------------------------------

    def _vocabulary(self) -> Any:
        """What text is encoded by: a WordVocabulary, counted, or that of the run to go on with."""
        w, say, phrases = self.recipe.words, self.progress.say, self.corpus.phrases
        if self.run.resume and (self.path / "vocabulary.tsv").exists():
            loaded = WordVocabulary.load(self.path, split=w.split, lower=w.lower)
            phrases.extend(loaded.phrases)
            return loaded
        for number in range(w.phrases):
            with self.progress.counting(f"phrases {number + 1}/{w.phrases}") as show:
                found = Phrases.learn_in_stretches(
                    self.corpus.stretches(),
                    min_count=w.phrase_min_count,
                    threshold=w.phrase_threshold,
                    progress=show,
                )
            phrases.append(found)
            say(f"phrases     {len(found):,} pairs joined in pass {number + 1}" + _pruned(found.pruned_below))
        with self.progress.counting("counting words") as show:
            vocabulary = WordVocabulary.count(
                self.corpus.texts(),
                min_count=w.min_count,
                max_words=w.max_words,
                split="whitespace" if phrases else w.split,
                lower=w.lower and not phrases,
                progress=show,
            )
        report = vocabulary.report
        assert report is not None
        limits = f"min_count {w.min_count}" + ("" if w.max_words is None else f", max_words {w.max_words:,}")
        say(
            f"vocabulary  {len(vocabulary):,} of {report.distinct:,} words, which are "
            f"{report.kept / report.words:.2%} of {report.words:,} running ones ({limits})"
            + _pruned(report.pruned_below)
        )
        return WordVocabulary(
            vocabulary.words, vocabulary.counts, split=w.split, lower=w.lower, phrases=phrases
        )

    def _ids(self, encoder: Any) -> TokenShards:
        """The text as ids: prepared, or, where the text of a run to go on with is gone, those it had."""
        before = self._begun_with() if self.run.resume else None
        if before is not None and not self.corpus.has(before["files"]):
            try:
                shards = TokenShards(before["folder"])
            except DataError as error:
                names = ", ".join(before["files"][:3])
                raise CheckpointError(
                    f"the training text ({names}) is gone, and so are the ids prepared from it ({error}); "
                    "put the text back, or choose another --out"
                ) from None
            self.progress.say("text        gone; going on with the ids that were prepared from it")
            return shards
        with self.progress.data("text") as show:
            shards = prepare(self.corpus, encoder, part="all", specials="text", progress=show)
        if before is not None and before["fingerprint"] != shards.fingerprint:
            raise CheckpointError(_NOT_THE_ONE.format("the training text", self.path))
        return shards

    def _begun_with(self) -> dict[str, Any] | None:
        """The ids that the run began with: their folder and fingerprint, and the names of the files read."""
        try:
            found = json.loads((self.path / "ledger.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        ids: dict[str, Any] | None = found.get("ids")
        return ids

    # -- vectors -----------------------------------------------------------------------------------------

    def _trainer(self, vocabulary: Any, shards: TokenShards, s: Any) -> Trainer:
        V, seed = len(vocabulary), self.recipe.seed
        if s.algorithm == "glove":
            check_memory(s.dim, 4 * V, f"{V:,} words twice, each with the sums of AdaGrad")
            cooccurrences = self._cooccurrences(shards, s)
            model = GloVe(
                V, dim=s.dim, x_max=s.x_max, alpha=s.power, learning_rate=s.alpha, seed=seed,
                deterministic=s.deterministic, workers=s.threads,
            )  # fmt: skip
            return GloVeTrainer(model, cooccurrences, epochs=s.epochs)
        units, rows = None, V
        subwords = self._subwords() if s.algorithm == "fasttext" else None
        if subwords is not None:
            rows += subwords.buckets
        check_memory(s.dim, rows + V, f"{rows:,} rows of inputs and {V:,} of outputs")
        if self.device is not None:
            corpus = TrainingCorpus.cut(shards)
            return TorchWordTrainer(corpus, vocabulary.counts, s, seed=seed, device=self.device)
        if subwords is not None:
            units = subword_rows(subwords, vocabulary.words)
            self.progress.say(
                f"n-grams     {len(units[1]) / V - 1:.1f} a word, in {subwords.buckets:,} buckets"
            )
        corpus = TrainingCorpus.cut(shards)
        return WordTrainer(corpus, vocabulary.counts, s, seed=seed, threads=s.threads, units=units, rows=rows)

    def _cooccurrences(self, shards: TokenShards, s: Any) -> Cooccurrences:
        with self.progress.counting("co-occurrences") as show:
            found = count_cooccurrences(
                shards,
                window=s.window,
                memory_mb=s.memory_mb,
                workers=s.threads,
                seed=self.recipe.seed,
                progress=lambda at: show(at.done) if at.stage == "count" else None,
            )
        self.progress.say(f"records     {len(found):,} pairs of words within {s.window} of one another")
        return found

    def _subwords(self) -> Subwords:
        s = self.recipe.vectors
        return Subwords(s.min_n, s.max_n, s.buckets if s.max_n else 0)

    def _loop(self, trainer: Trainer, facts: dict[str, Any]) -> tuple[bool, float | None, float | None]:
        """Portion after portion; returns whether it was stopped, words a second, and the last loss."""
        stop, clock, loss = threading.Event(), Clock(), None
        first, saved = trainer.job, time.monotonic()
        self.progress.start(total=trainer.jobs, done=trainer.job)
        try:
            with stop_on_signals(stop), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as log:
                while not trainer.done and not stop.is_set():
                    before, began = trainer.job, time.perf_counter()
                    figures = trainer.run()
                    clock.take(time.perf_counter() - began, figures.words, trainer.job - before)
                    loss = figures.loss
                    line = self._line(trainer, loss, clock)
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    self.progress.update(line)
                    if time.monotonic() - saved > 60 * self.recipe.vectors.save_minutes:
                        self.state.save(trainer, facts)
                        saved = time.monotonic()
                if trainer.job > first:
                    self.state.save(trainer, facts)
        finally:
            self.progress.stop()
        return not trainer.done, clock.rate, loss

    def _line(self, trainer: Trainer, loss: float | None, clock: Clock) -> dict[str, Any]:
        epochs, rate = self.recipe.vectors.settled().epochs, clock.rate
        return {
            "kind": "vectors",
            "job": trainer.job,
            "epoch": 1 + (trainer.job - 1) * epochs // trainer.jobs,
            "epochs": epochs,
            "loss": loss,
            "alpha": trainer.alpha,
            f"{trainer.unit}_per_second": None if rate is None else round(rate, 1),
            "seconds_left": clock.seconds_for(trainer.jobs - trainer.job),
        }

    def _finish(self, trainer: Any, vocabulary: Any) -> None:
        """Leave the vectors, as they are by now, in the run's folder itself."""
        words, counts, V = vocabulary.words, vocabulary.counts, len(vocabulary)
        vectors: KeyedVectors
        if self.recipe.vectors.algorithm == "fasttext":
            own, ngrams = trainer.inputs[:V], trainer.inputs[V:]
            vectors = FastTextVectors(words, own, ngrams, self._subwords(), counts=counts, check=False)
        else:
            vectors = KeyedVectors(words, trainer.inputs, counts=counts, check=False)
        save_vectors(vectors, self.path, made_by=f"wordloom, {trainer.kernel}")

    def _restore(self, trainer: Trainer, facts: dict[str, Any]) -> None:
        if not self.run.resume:
            return
        if not self.state.exists():
            self.progress.say("nothing was learnt yet: starting from the beginning")
            return
        state, metadata = self.state.load()
        for key, what in (("vocabulary", "the vocabulary"), ("data", "the training text")):
            if metadata.get(key) != facts[key]:
                raise CheckpointError(_NOT_THE_ONE.format(what, self.path))
        trainer.restore(state)
        before = metadata.get("device", "cpu")
        if before != trainer.device and not trainer.done:
            self.progress.say(
                f"going on    on {trainer.device} with what was learnt on {before}: other random numbers "
                "follow, so the vectors are not those that either alone would have come to"
            )


def subword_rows(subwords: Subwords, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(starts [V + 1], rows [N]): each word's own row, then its n-grams', which lie behind all words'."""
    V = len(words)
    ngram_starts, ngrams = subwords.table(words)
    starts = ngram_starts + np.arange(V + 1)
    rows = np.empty(len(ngrams) + V, dtype=np.int32)
    own = np.zeros(len(rows), dtype=bool)
    own[starts[:-1]] = True
    rows[own] = np.arange(V, dtype=np.int32)
    rows[~own] = ngrams + V
    return starts, rows


def _pruned(below: int) -> str:
    return (
        f"; for lack of memory, what had been met {below:,} times or less was dropped on the way"
        if below
        else ""
    )
