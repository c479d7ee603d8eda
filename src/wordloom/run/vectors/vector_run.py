"""One training run of word vectors: count words, prepare ids, train, save."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from wordloom.data import TokenShards, prepare
from wordloom.errors import CheckpointError, DataError, VectorError
from wordloom.files import write_text
from wordloom.progress import Clock, TrainingProgress
from wordloom.recipe.vectors import VectorRecipe
from wordloom.run.folder import RunFolder
from wordloom.run.vectors.word_corpus import word_corpus
from wordloom.training.hooks import cut_metrics
from wordloom.training.precision import choose_device
from wordloom.training.stopping import sigterm_interrupts, stop_on_signals
from wordloom.vectors import (
    FastTextVectors,
    GloVe,
    KeyedVectors,
    Subwords,
    TrainingCorpus,
    WordTrainer,
    WordVocabulary,
    count_cooccurrences,
    save_vectors,
)
from wordloom.vectors.corpus.phrases import Phrases
from wordloom.vectors.files.saved_state import SavedState
from wordloom.vectors.glove.cooccurrence import Cooccurrences
from wordloom.vectors.glove.model import GloVeTrainer
from wordloom.vectors.word2vec.torch_trainer import TorchWordTrainer, unsupported
from wordloom.vectors.word2vec.trainer import CompiledTrainer

_CHANGED = "{} differs from what {} was trained with; restore it, or choose another --out"

Trainer = CompiledTrainer | TorchWordTrainer | GloVeTrainer


@dataclass(frozen=True, kw_only=True)
class VectorResult:
    """The outcome of a training run.

    Attributes:
        folder: the run's folder.
        job, jobs: completed and total jobs; both 0 if the run was stopped before training began.
        stopped: the run was stopped before its end.
        words_per_second: the training speed (GloVe: records) in this process, without the first portion,
            which includes compilation.  None if there was no other portion.
        loss: the last loss.
    """

    folder: Path
    job: int
    jobs: int
    stopped: bool
    words_per_second: float | None = None
    loss: float | None = None


class VectorRun:
    """A run of word2vec, fastText or GloVe in a run's folder."""

    def __init__(self, recipe: VectorRecipe, run: RunFolder, progress: TrainingProgress) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.path = run.path
        self.state = SavedState(run.path)
        self.corpus = word_corpus(recipe)
        self.settings: Any = recipe.vectors.resolved()
        self.vocabulary: Any = None
        self.shards: TokenShards | None = None

    def train(self) -> VectorResult:
        try:
            with sigterm_interrupts():
                return self._train()
        except KeyboardInterrupt:  # during training, signals are handled between portions
            if self.run.force and not self.run.begun and (self.path / "recipe.toml").exists():
                self.progress.say(f"stopped before training began: the run in {self.path} is unchanged")
                raise
            return self._interrupted()

    def _train(self) -> VectorResult:
        say, s = self.progress.say, self.settings
        check_memory(s.dim, 2, "even of one word")  # before the words are counted, which takes minutes
        self.device, remark = vector_device(s)
        vocabulary = self.vocabulary = self._vocabulary()
        shards = self.shards = self._prepare(self.corpus.encoder(vocabulary))
        texts = len(shards.ends)
        say(f"words       {len(shards):,} to train on, in {texts:,} text{'s' * (texts > 1)}")
        with out_of_memory(s.dim, "vectors.memory_mb" if s.algorithm == "glove" else "vectors.threads"):
            trainer = self._trainer(vocabulary, shards)
        facts = {"data": shards.fingerprint, "vocabulary": vocabulary.fingerprint, "device": trainer.device}
        self._restore(trainer, facts)
        self._begin()
        cut_metrics(self.path / "metrics.jsonl", trainer.job, key="job")
        say(f"running     {trainer.kernel}{remark}")
        if trainer.job:
            say(f"resuming at {trainer.job / trainer.jobs:.0%}: job {trainer.job:,} of {trainer.jobs:,}")
        rate, loss = self._loop(trainer, facts)
        if not trainer.job:
            return self._interrupted()
        self._save_vectors(trainer, vocabulary)
        return VectorResult(
            folder=self.path, job=trainer.job, jobs=trainer.jobs, stopped=not trainer.done,
            words_per_second=rate, loss=loss,
        )  # fmt: skip

    def _interrupted(self) -> VectorResult:
        """Save what a resumed run can reuse."""
        self._begin()
        job, jobs = self.state.progress()
        if not job:
            saved = "settings" if self.vocabulary is None else "settings and vocabulary"
            self.progress.say(f"kept        {saved}; the interrupted step starts again on --resume")
        return VectorResult(folder=self.path, job=job, jobs=jobs, stopped=True)

    def _begin(self) -> None:
        """Write the run's first files, and the ledger and the vocabulary once they are known."""
        if not self.run.resume and not self.run.begun:
            self.run.begin(self.recipe, self._ledger())
        elif self.shards is not None and self._saved_ids() is None:
            write_text(self.path / "ledger.json", self._ledger())
        if self.vocabulary is not None and not (self.path / "vocabulary.tsv").exists():
            self.vocabulary.save(self.path)

    def _ledger(self) -> str:
        """Return the ledger of the text as JSON, with the folder of its ids."""
        if self.shards is None:
            return "{}"
        files = [source.name for source in self.corpus.files()]
        ids = {"folder": str(self.shards.folder), "fingerprint": self.shards.fingerprint, "files": files}
        return json.dumps({"train": self.shards.ledger.as_dict(), "ids": ids}, indent=1)

    # -- words -------------------------------------------------------------------------------------------

    def _vocabulary(self) -> Any:
        """Count the words, after joining phrases, or load the vocabulary of the run to resume."""
        w, phrases = self.recipe.words, self.corpus.phrases
        if self.run.resume and (self.path / "vocabulary.tsv").exists():
            loaded = WordVocabulary.load(self.path, split=w.split, lower=w.lower)
            if len(loaded.phrases) != w.phrases:
                raise CheckpointError(
                    f"{self.path} has {len(loaded.phrases)} of the recipe's {w.phrases} passes of phrases: "
                    "phrases.json is missing or damaged; start again with --force"
                )
            phrases.extend(loaded.phrases)
            return loaded
        for number in range(1, w.phrases + 1):
            with self.progress.counting(f"phrases {number}/{w.phrases}") as show:
                learned = Phrases.learn(
                    self.corpus.stretches(),
                    min_count=w.phrase_min_count,
                    threshold=w.phrase_threshold,
                    progress=show,
                )
            phrases.append(learned)
            pruned = _pruned(learned.pruned_below)
            self.progress.say(f"phrases     {len(learned):,} pairs joined in pass {number}{pruned}")
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
        self.progress.say(
            f"vocabulary  {len(vocabulary):,} of {report.distinct:,} distinct words, which cover "
            f"{report.kept / report.words:.2%} of {report.words:,} words of text ({limits})"
            + _pruned(report.pruned_below)
        )
        return WordVocabulary(
            vocabulary.words, vocabulary.counts, split=w.split, lower=w.lower, phrases=phrases
        )

    def _prepare(self, encoder: Any) -> TokenShards:
        """Return the text as ids.  A resumed run whose text is gone uses the ids prepared before."""
        saved = self._saved_ids() if self.run.resume else None
        if saved is not None and not self.corpus.has(saved["files"]):
            try:
                shards = TokenShards(saved["folder"])
            except DataError as error:
                names = ", ".join(saved["files"][:3])
                raise CheckpointError(
                    f"the training text ({names}) is gone, and so are the ids prepared from it ({error}); "
                    "put the text back, or choose another --out"
                ) from None
            self.progress.say("text        is gone; continuing with the ids prepared from it")
            return shards
        with self.progress.data("text") as show:
            shards = prepare(self.corpus, encoder, part="all", specials="text", progress=show)
        if saved is not None and saved["fingerprint"] != shards.fingerprint:
            raise CheckpointError(_CHANGED.format("the training text", self.path))
        return shards

    def _saved_ids(self) -> dict[str, Any] | None:
        """Return the ledger's entry on ids: their folder, their fingerprint and the files of the text."""
        try:
            ledger = json.loads((self.path / "ledger.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return ledger.get("ids")

    # -- vectors -----------------------------------------------------------------------------------------

    def _trainer(self, vocabulary: Any, shards: TokenShards) -> Trainer:
        s, V, seed = self.settings, len(vocabulary), self.recipe.seed
        if s.algorithm == "glove":
            check_memory(s.dim, 4 * V, f"{V:,} words twice, each with AdaGrad's sums")
            cooccurrences = self._cooccurrences(shards)
            model = GloVe(
                V, dim=s.dim, x_max=s.x_max, alpha=s.power, learning_rate=s.alpha, seed=seed,
                deterministic=s.deterministic, workers=s.threads,
            )  # fmt: skip
            return GloVeTrainer(model, cooccurrences, epochs=s.epochs)
        units, rows = None, V
        subwords = self._subwords() if s.algorithm == "fasttext" else None
        if subwords is not None:
            rows += subwords.buckets
        check_memory(s.dim, rows + V, f"{rows:,} input rows and {V:,} output rows")
        corpus = TrainingCorpus.cut(shards)
        if self.device is not None:
            return TorchWordTrainer(corpus, vocabulary.counts, s, seed=seed, device=self.device)
        if subwords is not None:
            units = subwords.unit_rows(vocabulary.words)
            ngrams = len(units[1]) / V - 1
            self.progress.say(f"n-grams     {ngrams:.1f} a word, in {subwords.buckets:,} buckets")
        return WordTrainer(corpus, vocabulary.counts, s, seed=seed, threads=s.threads, units=units, rows=rows)

    def _cooccurrences(self, shards: TokenShards) -> Cooccurrences:
        s = self.settings
        with self.progress.counting("co-occurrences") as show:
            cooccurrences = count_cooccurrences(
                shards,
                window=s.window,
                memory_mb=s.memory_mb,
                workers=s.threads,
                seed=self.recipe.seed,
                progress=lambda at: show(at.done) if at.stage == "count" else None,
            )
        self.progress.say(
            f"records     {len(cooccurrences):,} pairs of words within {s.window} of each other"
        )
        return cooccurrences

    def _subwords(self) -> Subwords:
        s = self.settings
        return Subwords(s.min_n, s.max_n, s.buckets if s.max_n else 0)

    def _loop(self, trainer: Trainer, facts: dict[str, Any]) -> tuple[float | None, float | None]:
        """Train portion after portion; return words per second and the last loss."""
        stop, clock, loss = threading.Event(), Clock(), None
        first, saved = trainer.job, time.monotonic()
        self.progress.start(total=trainer.jobs, done=trainer.job)
        try:
            with stop_on_signals(stop), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as log:
                while not trainer.done and not stop.is_set():
                    before, began = trainer.job, time.perf_counter()
                    portion = trainer.run()
                    clock.take(time.perf_counter() - began, portion.words, trainer.job - before)
                    loss = portion.loss
                    rate, epochs = clock.rate, self.settings.epochs
                    line = {
                        "kind": "vectors",
                        "job": trainer.job,
                        "epoch": 1 + (trainer.job - 1) * epochs // trainer.jobs,
                        "epochs": epochs,
                        "loss": loss,
                        "alpha": trainer.alpha,
                        f"{trainer.unit}_per_second": None if rate is None else round(rate, 1),
                        "seconds_left": clock.seconds_for(trainer.jobs - trainer.job),
                    }
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    self.progress.update(line)
                    if time.monotonic() - saved > 60 * self.settings.save_minutes:
                        self.state.save(trainer, facts)
                        saved = time.monotonic()
                if trainer.job > first:
                    self.state.save(trainer, facts)
        finally:
            self.progress.stop()
        return clock.rate, loss

    def _save_vectors(self, trainer: Any, vocabulary: Any) -> None:
        """Write the vectors to the run's folder."""
        words, counts, V = vocabulary.words, vocabulary.counts, len(vocabulary)
        vectors: KeyedVectors
        if self.settings.algorithm == "fasttext":
            own, ngrams = trainer.inputs[:V], trainer.inputs[V:]
            vectors = FastTextVectors(words, own, ngrams, self._subwords(), counts=counts, check=False)
        else:
            vectors = KeyedVectors(words, trainer.inputs, counts=counts, check=False)
        save_vectors(vectors, self.path, made_by=f"wordloom, {trainer.kernel}")

    def _restore(self, trainer: Trainer, facts: dict[str, Any]) -> None:
        if not self.run.resume:
            return
        if not self.state.exists():
            self.progress.say("no training state was saved: training starts from the beginning")
            return
        state, metadata = self.state.load()
        for key, name in (("vocabulary", "the vocabulary"), ("data", "the training text")):
            if metadata.get(key) != facts[key]:
                raise CheckpointError(_CHANGED.format(name, self.path))
        trainer.restore(state)
        before = metadata.get("device", "cpu")
        if before != trainer.device and not trainer.done:
            self.progress.say(
                f"continuing  on {trainer.device} after training on {before}: the random numbers differ, so "
                "the vectors are not those of a run on either device alone"
            )


def _pruned(below: int) -> str:
    if not below:
        return ""
    return f"; to save memory, entries counted {below:,} times or less were dropped during counting"


def vector_device(settings: Any) -> tuple[torch.device | None, str]:
    """Return the device for ``settings`` (:class:`wordloom.recipe.vectors.VectorSettings`), and a remark.

    None means the CPU's cores, where the numba kernels are many times faster than torch.  The remark says why
    an available GPU is not used.

    Raises DeviceError for a device that is not available, VectorError for settings that it does not support.
    """
    missing = unsupported(settings)
    if settings.device == "auto":
        if not torch.cuda.is_available():
            return None, ""
        if missing:
            return None, f"; the GPU is idle: {missing} is not trained on it"
        return torch.device("cuda"), ""
    device = choose_device(settings.device)
    if device.type == "cpu":
        return None, ""
    if missing:
        raise VectorError(
            f"vectors.device is {settings.device!r}, but {missing} is not trained on a GPU; set "
            "vectors.device=cpu"
        )
    return device, ""


def check_memory(dim: int, rows: int, purpose: str) -> None:
    """Raise VectorError if ``rows`` vectors of ``dim`` float32 exceed the free memory."""
    needed, free = 4 * dim * rows, psutil.virtual_memory().available
    if needed > free:
        raise VectorError(
            f"vectors.dim {dim:,} takes {needed:,} bytes of memory ({purpose}), and {free:,} are free; "
            "lower vectors.dim (--dim)"
        )


@contextmanager
def out_of_memory(dim: int, setting: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into VectorError, which suggests lowering ``setting`` too."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise VectorError(
            f"there is no memory for training vectors.dim {dim:,} ({error}); lower it, or {setting}"
        ) from None
