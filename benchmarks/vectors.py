"""Compare word vectors with gensim: words per second and scores, with the same settings and threads.

    python benchmarks/vectors.py [--algorithms skipgram cbow ...] [--speed-only | --quality-only]
                                 [--rounds 3] [--seeds 3] [--sections] [--quick]

The corpus is gutenberg/train (222 books, lower-cased words; see `wordloom data list`).  Both sides read the
same words.  gensim reads a text file with at most 10,000 words per line, its fastest input (``corpus_file``);
Wordloom reads its token shards.  Settings are gensim's defaults: dim 100, window 5, 5 negative samples,
min_count 5, sample 1e-3, alpha from 0.025 to 0.0001, 5 epochs for quality and one for speed.  With 5 negative
samples, gensim draws 5 for every pair and Wordloom 5 for every window.  In fastText's skip-gram, Wordloom
draws 15 that each have a third of the weight.

Every run has its own process, and only training is timed.  Sides take turns, and medians of words per second
are compared.  Quality is the mean over seeds with its range: accuracy on questions-words (for questions whose
words have vectors; over all sections, over the grammatical sections, and with --sections for each), and the
Spearman correlation with WordSim-353 and SimLex-999.

No maintained GloVe exists in Python.  Its rates are printed for a quarter, half and all of the books, to show
that both stages are linear in the corpus: words per second for counting (window 15) and records per second
for training.  Its quality is measured with the settings of the recipe glove-gutenberg.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from entry import in_one_line

ALGORITHMS = {
    "skipgram": {"architecture": "skipgram"},
    "cbow": {"architecture": "cbow"},
    "skipgram-tree": {"architecture": "skipgram", "tree": True},
    "cbow-tree": {"architecture": "cbow", "tree": True},
    "fasttext-skipgram": {"architecture": "skipgram", "ngrams": True},
    "fasttext-cbow": {"architecture": "cbow", "ngrams": True},
}
SIDES = ("wordloom", "wordloom deterministic", "gensim")
GRAMMAR = "gram"  # the prefix of the grammatical sections' names
BUCKETS = 2_000_000
FRACTIONS = (0.25, 0.5, 1.0)  # shares of the books, for GloVe's rates
GLOVE = {"dim": 100, "x_max": 10.0}
GLOVE_WINDOW, GLOVE_EPOCHS = 15, 15


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--algorithms", nargs="+", choices=[*ALGORITHMS, "glove"], default=[*ALGORITHMS, "glove"]
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side for speed")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side for quality")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of a run for quality")
    parser.add_argument("--sections", action="store_true", help="print every section of the analogies")
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--quality-only", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="a small text and one run, to check that everything runs"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(work(json.loads(args.worker))))
        return
    if args.quick:
        args.rounds = args.seeds = args.epochs = 1
    with tempfile.TemporaryDirectory() as folder:
        data = "gutenberg/valid" if args.quick else "gutenberg/train"
        text = prepare(Path(folder), data)
        facts = {"benchmark": "vectors", "cores": os.cpu_count(), "threads": args.threads, **text}
        print(json.dumps({**facts, "load_average": round(os.getloadavg()[0], 2)}), flush=True)
        for algorithm in args.algorithms:
            common = {**text, "algorithm": algorithm, "threads": args.threads, "sections": args.sections}
            if algorithm == "glove":
                if not args.quality_only:
                    glove_speed(common, data, args.rounds)
                if not args.speed_only:
                    quality(common, SIDES[:1], args.seeds, 1 if args.quick else GLOVE_EPOCHS)
                continue
            if not args.quality_only:
                speed(common, args.sides, args.rounds)
            if not args.speed_only:
                quality(common, args.sides, args.seeds, args.epochs)


def speed(common: dict[str, Any], sides: list[str], rounds: int) -> None:
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            rates[side].append(run({**common, "side": side, "seed": 1, "epochs": 1})["words_per_second"])
    medians = {side: statistics.median(found) for side, found in rates.items()}
    for side in sides:
        line = {"algorithm": common["algorithm"], "side": side, "words_per_second": round(medians[side])}
        if side != "gensim" and "gensim" in medians:
            line["ratio_to_gensim"] = round(medians[side] / medians["gensim"], 2)
        if side == "wordloom deterministic" and "wordloom" in medians:
            line["ratio_to_fast"] = round(medians[side] / medians["wordloom"], 2)
        print(json.dumps({**line, "all": [round(rate) for rate in rates[side]]}), flush=True)


def quality(common: dict[str, Any], sides: list[str], seeds: int, epochs: int) -> None:
    for side in sides:
        # The same bits on one thread, which has no other to wait for where the machine is busy.
        threads = 1 if side == "wordloom deterministic" else common["threads"]
        asked = {**common, "side": side, "threads": threads, "epochs": epochs, "judge": True}
        found = [run({**asked, "seed": seed})["figures"] for seed in range(1, seeds + 1)]
        line: dict[str, Any] = {
            "algorithm": common["algorithm"],
            "side": side,
            "seeds": seeds,
            "epochs": epochs,
        }
        for name in found[0]:
            values = [figures[name] for figures in found]
            spread = [round(min(values), 4), round(max(values), 4)]
            line[name] = {"mean": round(statistics.mean(values), 4), "range": spread}
        print(json.dumps(line), flush=True)


def glove_speed(common: dict[str, Any], data: str, rounds: int) -> None:
    """Measure both stages of GloVe over growing parts of the books."""
    for fraction, shards in parts(Path(common["folder"]), data):
        asked = {**common, "side": SIDES[0], "shards": shards, "rates": True}
        found = [run(asked) for _ in range(rounds)]
        line = {
            "algorithm": "glove",
            "part": fraction,
            "words": found[0]["words"],
            "records": found[0]["records"],
        }
        for name in ("counted_words_per_second", "trained_records_per_second"):
            line[name] = round(statistics.median(one[name] for one in found))
        print(json.dumps(line), flush=True)


def parts(folder: Path, data: str) -> Iterator[tuple[float, str]]:
    """Return shards of the first books that hold each of FRACTIONS of the letters."""
    from wordloom.data import Corpus
    from wordloom.data import prepare as shards_of
    from wordloom.vectors import WordVocabulary

    texts = [
        str(d.text) for d in Corpus(sources=data, split="hash", validation_fraction=0.0).documents("all")
    ]
    vocabulary = WordVocabulary.load(folder, split="words", lower=True)
    letters = sum(map(len, texts))
    for fraction in FRACTIONS:
        path, written = folder / f"part-{fraction}.jsonl", 0
        with open(path, "w", encoding="utf-8") as file:
            for text in texts:
                if written < fraction * letters:
                    file.write(json.dumps({"text": text}) + "\n")
                    written += len(text)
        corpus = Corpus(sources=str(path), split="hash", validation_fraction=0.0)
        yield fraction, str(shards_of(corpus, vocabulary, part="all").folder)


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one run in its own process."""
    done = subprocess.run(
        [sys.executable, __file__, "--worker", json.dumps(settings)], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{settings['side']}, {settings['algorithm']}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def prepare(folder: Path, data: str) -> dict[str, Any]:
    """Prepare the corpus for both sides: ids and counts for Wordloom, lines of words for gensim."""
    import numpy as np

    from wordloom.data import Corpus
    from wordloom.data import prepare as shards_of
    from wordloom.vectors import WordVocabulary
    from wordloom.vectors.word2vec.trainer import TrainingCorpus

    corpus = Corpus(sources=data, split="hash", validation_fraction=0.0)
    texts = (str(document.text) for document in corpus.documents("all"))
    vocabulary = WordVocabulary.count(texts, min_count=5)
    vocabulary.save(folder)
    shards = shards_of(corpus, vocabulary, part="all")
    words, begin = np.array(vocabulary.words, dtype=object), 0
    with open(folder / "corpus.txt", "w", encoding="utf-8") as file:
        for end in TrainingCorpus.cut(shards).ends.tolist():
            file.write(" ".join(words[shards.tokens(begin, end)]) + "\n")
            begin = end
    return {
        "folder": str(folder),
        "shards": str(shards.folder),
        "words": len(shards),
        "vocabulary": len(words),
    }


def work(settings: dict[str, Any]) -> dict[str, Any]:
    """Train once; return the words per second and, if asked for, the scores."""
    if settings["algorithm"] == "glove":
        return glove_rates(settings) if settings.get("rates") else glove_quality(settings)
    s = SimpleNamespace(**{"tree": False, "ngrams": False, **settings, **ALGORITHMS[settings["algorithm"]]})
    seconds, words, vectors = (gensim_side if s.side == "gensim" else wordloom_side)(s)
    result: dict[str, Any] = {"words_per_second": s.epochs * settings["words"] / seconds}
    if settings.get("judge"):
        result["figures"] = judge(words, vectors, settings["sections"])
    return result


def glove_rates(settings: dict[str, Any]) -> dict[str, Any]:
    """Count without a cache, then train for one pass."""
    from wordloom.data.shards.storage import TokenShards
    from wordloom.vectors import GloVe, count_cooccurrences

    shards, threads = TokenShards(settings["shards"]), settings["threads"]
    words = len(shards)
    for round_number in range(2):  # the first round compiles
        with tempfile.TemporaryDirectory() as cache:
            began = time.perf_counter()
            found = count_cooccurrences(shards, window=GLOVE_WINDOW, workers=threads, cache=cache)
            counting = time.perf_counter() - began
            if round_number == 0:
                GloVe(shards.vocab_size, **GLOVE, workers=threads).train(found, epochs=1, stop=lambda: True)
                continue
            model = GloVe(shards.vocab_size, **GLOVE, workers=threads)
            began = time.perf_counter()
            model.train(found, epochs=1)
            training = time.perf_counter() - began
            records = len(found)
    return {
        "words": words,
        "records": records,
        "counted_words_per_second": words / counting,
        "trained_records_per_second": records / training,
    }


def glove_quality(settings: dict[str, Any]) -> dict[str, Any]:
    from wordloom.data.shards.storage import TokenShards
    from wordloom.vectors import GloVe, WordVocabulary, count_cooccurrences

    vocabulary = WordVocabulary.load(settings["folder"], split="words", lower=True)
    found = count_cooccurrences(
        TokenShards(settings["shards"]),
        window=GLOVE_WINDOW,
        workers=settings["threads"],
        seed=settings["seed"],
    )
    model = GloVe(len(vocabulary), **GLOVE, workers=settings["threads"], seed=settings["seed"])
    model.train(found, epochs=settings["epochs"])
    return {"figures": judge(vocabulary.words, model.vectors(), settings["sections"])}


def wordloom_side(s: Any) -> tuple[float, list[str], Any]:
    import numpy as np

    from wordloom.data.shards.storage import TokenShards
    from wordloom.vectors import Subwords, WordVocabulary
    from wordloom.vectors.word2vec.trainer import TrainingCorpus, WordTrainer

    vocabulary = WordVocabulary.load(s.folder, split="words", lower=True)
    settings = SimpleNamespace(
        architecture=s.architecture, dim=100, window=5, negative=0 if s.tree else 5, exponent=0.75,
        sample=1e-3, alpha=0.025, min_alpha=1e-4, mean=True, deterministic=s.side.endswith("deterministic"),
    )  # fmt: skip
    units = rows = None
    if s.ngrams:
        units = Subwords(3, 6, BUCKETS).unit_rows(vocabulary.words)
        rows = len(vocabulary) + BUCKETS
    corpus = TrainingCorpus.cut(TokenShards(s.shards))

    def trainer(epochs: int) -> Any:
        settings.epochs = epochs
        return WordTrainer(
            corpus, vocabulary.counts, settings, seed=s.seed, threads=s.threads, units=units, rows=rows
        )

    trainer(1).run()  # compile before timing
    made = trainer(s.epochs)
    began = time.perf_counter()
    while not made.done:
        made.run()
    seconds = time.perf_counter() - began
    vectors = made.inputs
    if units is not None:
        starts, unit_rows = units
        sums = np.add.reduceat(made.inputs[unit_rows], starts[:-1], axis=0)
        vectors = sums / np.diff(starts)[:, None]
    return seconds, vocabulary.words, vectors


def gensim_side(s: Any) -> tuple[float, list[str], Any]:
    from gensim.models import FastText, Word2Vec

    path = f"{s.folder}/corpus.txt"
    settings: dict[str, Any] = {
        "sg": int(s.architecture == "skipgram"), "hs": int(s.tree), "negative": 0 if s.tree else 5,
        "vector_size": 100, "window": 5, "min_count": 1, "sample": 1e-3, "workers": s.threads, "seed": s.seed,
    }  # fmt: skip
    model: Any = FastText(**settings, bucket=BUCKETS) if s.ngrams else Word2Vec(**settings)
    model.build_vocab(corpus_file=path)
    composing = Timed(model.wv.adjust_vectors) if s.ngrams else None
    if (
        composing is not None
    ):  # gensim composes words from n-grams at the end of train(); Wordloom's are not timed either
        model.wv.adjust_vectors = composing
    began = time.perf_counter()
    model.train(
        corpus_file=path,
        total_words=model.corpus_total_words,
        total_examples=model.corpus_count,
        epochs=s.epochs,
    )
    seconds = time.perf_counter() - began - (composing.seconds if composing is not None else 0.0)
    return seconds, model.wv.index_to_key, model.wv.vectors


class Timed:
    """Return the result of a call and its total seconds."""

    def __init__(self, call: Any) -> None:
        self.call, self.seconds = call, 0.0

    def __call__(self) -> None:
        began = time.perf_counter()
        self.call()
        self.seconds += time.perf_counter() - began


def judge(words: list[str], vectors: Any, each_section: bool) -> dict[str, float]:
    from wordloom.data.sets.fetch import local_files
    from wordloom.vectors import KeyedVectors

    wv = KeyedVectors(words, vectors)
    analogies = wv.evaluate_word_analogies(local_files("google-analogies")[0])
    sections = {section.name: section for section in analogies.sections[:-1]}  # the last section is the total
    grammar = [section for name, section in sections.items() if name.startswith(GRAMMAR)]
    right, asked = sum(len(s.correct) for s in grammar), sum(s.asked for s in grammar)
    figures = {"analogies": analogies.accuracy, "grammar": right / asked}
    if "family" in sections:
        figures["family"] = sections["family"].accuracy
    if each_section:
        figures |= {f"section {name}": s.accuracy for name, s in sections.items() if s.asked}
    for name in ("wordsim353", "simlex999"):
        figures[name] = wv.evaluate_word_pairs(local_files(name)[0]).spearman.statistic
    return figures


if __name__ == "__main__":
    in_one_line(main)
