"""Train word vectors by a recipe: count words, prepare ids, learn, keep what would be lost."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from wordloom.data import Corpus, TokenShards, prepare
from wordloom.data.cutting import Cutter, cut_rule
from wordloom.data.shards import SEGMENT
from wordloom.errors import CheckpointError
from wordloom.run.folder import RunFolder, refuse_changes
from wordloom.run.progress import TrainingProgress
from wordloom.run.vector_device import vector_device
from wordloom.training.hooks import cut_metrics
from wordloom.training.stopping import stop_on_signals
from wordloom.vector_recipe import VectorRecipe, load_vector_recipe
from wordloom.vectors import (
    Cooccurrences,
    FastTextVectors,
    GloVe,
    KeyedVectors,
    Subwords,
    WordVocabulary,
    count_cooccurrences,
    save_vectors,
    split_words,
)
from wordloom.vectors.glove_trainer import GloVeTrainer
from wordloom.vectors.phrases import Phrases
from wordloom.vectors.torch_training import TorchWordTrainer
from wordloom.vectors.training import TrainingCorpus, WordTrainer

__all__ = ["VectorResult", "VectorRun", "subword_rows", "train_vectors"]

# Settings that may change on resume: they decide how fast, not what is learnt, though on another device it
# comes out by other random numbers.
_FREE_ON_RESUME = ("vectors.threads", "vectors.device", "vectors.save_minutes")


@dataclass(frozen=True, kw_only=True)
class VectorResult:
    """Where the run is, how far it came, and what it saw."""

    folder: Path
    job: int
    jobs: int
    stopped: bool
    words_per_second: float  # (GloVe: records) of training alone, over this process's part of the run
    loss: float | None


def train_vectors(
    recipe: str | Path | VectorRecipe | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: TrainingProgress | None = None,
) -> VectorResult:
    """Train the word vectors of ``recipe`` into the folder ``out`` (``runs/NAME`` by default).

    The finished folder is what :func:`wordloom.vectors.load_vectors` opens, with ``recipe.toml``,
    ``metrics.jsonl``, ``vocabulary.tsv`` and, for going on, ``checkpoints/``.

    Raises WordloomError for whatever the user can put right, NonFiniteError when the vectors diverge.
    """
    loaded = load_vector_recipe(recipe, overrides)
    path = Path(out) if out is not None else Path("runs") / loaded.name
    progress = progress or TrainingProgress()
    with RunFolder(path, resume=resume, force=force) as folder:
        if resume:
            refuse_changes(loaded, folder.saved_recipe(VectorRecipe), free=_FREE_ON_RESUME)
        return _kind_of_run(loaded)(loaded, folder, progress).train()


Trainer = WordTrainer | TorchWordTrainer | GloVeTrainer


def _kind_of_run(recipe: VectorRecipe) -> type[VectorRun]:
    if recipe.vectors.algorithm != "fasttext-supervised":
        return VectorRun
    from wordloom.run.train_supervised import SupervisedRun

    return SupervisedRun


class VectorRun:
    """One run: words are counted, ids prepared, vectors learnt, and the run's folder filled."""

    def __init__(self, recipe: VectorRecipe, run: RunFolder, progress: TrainingProgress) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.path = run.path
        self.state_file = self.path / "checkpoints" / "vectors.safetensors"
        d = recipe.data
        fields: dict[str, Any] = {} if d.field is None else {"field": d.field}
        # By hash, with nothing held out: a split by the tail would read all text once for its length.
        self.corpus = Corpus(
            sources=d.train,
            separator=d.separator,
            encoding_errors=d.encoding_errors,
            split="hash",
            validation_fraction=0.0,
            **fields,
        )

    def train(self) -> VectorResult:
        say, s = self.progress.say, self.recipe.vectors.settled()
        self.device, why = vector_device(s)  # first of all: words are counted for minutes
        vocabulary = self._vocabulary()
        with self.progress.data("text") as show:
            shards = prepare(self.corpus, vocabulary, part="all", specials="text", progress=show)
        say(f"words       {len(shards):,} to train on, in {len(shards.ends):,} documents")
        trainer = self._trainer(vocabulary, shards, s)
        facts = {
            "data": shards.fingerprint,
            "vocabulary": vocabulary.fingerprint,
            "device": trainer.device,
        }
        self._restore(trainer, facts)
        if not self.run.resume:
            self.run.begin(self.recipe, json.dumps({"train": shards.ledger.as_dict()}, indent=1))
            vocabulary.save(self.path)
        cut_metrics(self.path / "metrics.jsonl", trainer.job, key="job")
        say(f"running     {trainer.kernel}{why}")
        if trainer.job:
            say(f"resuming at {trainer.job / trainer.jobs:.0%}: job {trainer.job:,} of {trainer.jobs:,}")
        stopped, rate, loss = self._loop(trainer, facts)
        if not stopped:
            self._finish(trainer, vocabulary)
        return VectorResult(
            folder=self.path,
            job=trainer.job,
            jobs=trainer.jobs,
            stopped=stopped,
            words_per_second=rate,
            loss=loss,
        )

    # -- words -------------------------------------------------------------------------------------------

    def _vocabulary(self) -> Any:
        """What text is encoded by: a WordVocabulary, counted, or that of the run to go on with."""
        w, say = self.recipe.words, self.progress.say
        if self.run.resume and (self.path / "vocabulary.tsv").exists():
            return WordVocabulary.load(self.path, split=w.split, lower=w.lower)
        phrases: list[Phrases] = []
        for number in range(w.phrases):
            with self.progress.counting(f"phrases {number + 1}/{w.phrases}") as show:
                texts = self._joined(phrases)
                found = Phrases.learn(
                    texts, min_count=w.phrase_min_count, threshold=w.phrase_threshold, progress=show
                )
            phrases.append(found)
            say(f"phrases     {len(found):,} pairs joined in pass {number + 1}" + _pruned(found.pruned_below))
        with self.progress.counting("counting words") as show:
            vocabulary = WordVocabulary.count(
                self._texts(whole=bool(phrases)),
                min_count=w.min_count,
                max_words=w.max_words,
                split=w.split,
                lower=w.lower,
                phrases=phrases,
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
        return vocabulary

    def _texts(self, *, whole: bool) -> Iterator[str]:
        """The corpus in stretches cut where no word is, as it is encoded; else in whole documents."""
        if whole:
            for document in self.corpus.documents("all"):
                assert isinstance(document.text, str)
                yield document.text
            return
        probe = WordVocabulary(["one", "two"], [1, 1], split=self.recipe.words.split)
        cutter = Cutter(SEGMENT, cut_rule(probe))
        for piece in self.corpus.pieces("all"):
            for text in cutter.push(piece.text, last=piece.last):
                assert isinstance(text, str)
                yield text

    def _joined(self, phrases: list[Phrases]) -> Iterator[list[str]]:
        w = self.recipe.words
        for text in self._texts(whole=True):
            words = split_words(text, split=w.split, lower=w.lower)
            for one in phrases:
                words = one.join(words)
            yield words

    # -- vectors -----------------------------------------------------------------------------------------

    def _trainer(self, vocabulary: Any, shards: TokenShards, s: Any) -> Trainer:
        V, seed = len(vocabulary), self.recipe.seed
        if s.algorithm == "glove":
            cooccurrences = self._cooccurrences(shards, s)
            model = GloVe(
                V, dim=s.dim, x_max=s.x_max, alpha=s.power, learning_rate=s.alpha, seed=seed,
                deterministic=s.deterministic, workers=s.threads,
            )  # fmt: skip
            return GloVeTrainer(model, cooccurrences, epochs=s.epochs)
        if self.device is not None:
            corpus = TrainingCorpus.cut(shards)
            return TorchWordTrainer(corpus, vocabulary.counts, s, seed=seed, device=self.device)
        units, rows = None, V
        if s.algorithm == "fasttext":
            subwords = self._subwords()
            units = subword_rows(subwords, vocabulary.words)
            rows += subwords.buckets
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

    def _loop(self, trainer: Trainer, facts: dict[str, Any]) -> tuple[bool, float, float | None]:
        """Portion after portion; returns whether it was stopped, words a second, and the last loss."""
        stop, words, spent, loss = threading.Event(), 0, 0.0, None
        first, saved = trainer.job, time.monotonic()
        self.progress.start(total=trainer.jobs, done=trainer.job)
        try:
            with stop_on_signals(stop), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as log:
                while not trainer.done and not stop.is_set():
                    began = time.perf_counter()
                    figures = trainer.run()
                    spent += time.perf_counter() - began
                    words, loss = words + figures.words, figures.loss
                    line = self._line(trainer, loss, words / spent, spent / (trainer.job - first))
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    self.progress.update(line)
                    if time.monotonic() - saved > 60 * self.recipe.vectors.save_minutes:
                        self._save(trainer, facts)
                        saved = time.monotonic()
                if trainer.job > first:
                    self._save(trainer, facts)
        finally:
            self.progress.stop()
        return not trainer.done, words / spent if spent else 0.0, loss

    def _line(
        self, trainer: Trainer, loss: float | None, rate: float, seconds_a_job: float
    ) -> dict[str, Any]:
        epochs = self.recipe.vectors.settled().epochs
        return {
            "kind": "vectors",
            "job": trainer.job,
            "epoch": 1 + (trainer.job - 1) * epochs // trainer.jobs,
            "epochs": epochs,
            "loss": loss,
            "alpha": trainer.alpha,
            f"{trainer.unit}_per_second": round(rate, 1),
            "seconds_left": round(seconds_a_job * (trainer.jobs - trainer.job), 1),
        }

    def _finish(self, trainer: Any, vocabulary: Any) -> None:
        """Leave the vectors in the run's folder itself."""
        words, counts, V = vocabulary.words, vocabulary.counts, len(vocabulary)
        vectors: KeyedVectors
        if self.recipe.vectors.algorithm == "fasttext":
            own, ngrams = trainer.inputs[:V], trainer.inputs[V:]
            vectors = FastTextVectors(words, own, ngrams, self._subwords(), counts=counts, check=False)
        else:
            vectors = KeyedVectors(words, trainer.inputs, counts=counts, check=False)
        save_vectors(vectors, self.path, made_by=f"wordloom, {trainer.kernel}")

    # -- where it stopped --------------------------------------------------------------------------------

    def _save(self, trainer: Trainer, facts: dict[str, Any]) -> None:
        """Write the state beside the last one, make it durable, and only then replace that."""
        temporary = self.state_file.with_name(".vectors.safetensors.tmp")
        arrays = {name: np.ascontiguousarray(array) for name, array in trainer.state().items()}
        try:
            self.state_file.parent.mkdir(exist_ok=True)
            save_file(arrays, temporary, metadata={name: str(value) for name, value in facts.items()})
            _make_durable(temporary)
            temporary.replace(self.state_file)
            _make_durable(self.state_file.parent)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise CheckpointError(
                f"could not write {self.state_file}: {error}; free some space and resume from what was saved "
                "before"
            ) from None

    def _restore(self, trainer: Trainer, facts: dict[str, Any]) -> None:
        if not self.run.resume:
            return
        if not self.state_file.exists():
            self.progress.say("nothing was saved yet: starting from the beginning")
            return
        try:
            with safe_open(self.state_file, framework="numpy") as file:
                metadata = file.metadata() or {}
                state: dict[str, NDArray[Any]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot read {self.state_file}: {error}; start again with --force"
            ) from None
        for key, what in (("vocabulary", "the vocabulary"), ("data", "the training text")):
            if metadata.get(key) != facts[key]:
                raise CheckpointError(
                    f"{what} is not the one {self.path} was trained with; put it back, or choose another "
                    "--out"
                )
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


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pruned(below: int) -> str:
    return (
        f"; for lack of memory, what had been met {below:,} times or less was dropped on the way"
        if below
        else ""
    )
