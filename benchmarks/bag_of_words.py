"""Compare the bag-of-words classifier with scikit-learn's vectorizers and LogisticRegression on SST-2.

    WORDLOOM_DATA=... python benchmarks/bag_of_words.py [--rounds 15] [--threads 1] [--commands 0]

Each side gets the training texts as a list and trains a classifier.  The accuracy is measured on the
development rows.  All sides take turns, and the order is reversed from round to round, so that other programs
on the machine slow all sides equally.  The benchmark prints medians, and the median of scikit-learn's time
divided by Wordloom's.  The divisor is the recipe's run (tf-idf), or a run with the same kind of features.
Wordloom trains with the Trainer of ``wordloom train`` and the recipe's settings.

scikit-learn runs both vectorizers with their default settings, which most people use.  It also runs both on
Wordloom's words (white space; binary counts where Wordloom's are binary), with the recipe's penalty too
(C = 4).

``--commands N`` also times the complete command N times in its own process, from start to saved model, beside
a script that does the same work with scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from entry import in_one_line

RECIPE = "bag-of-words-sst2"
BINARY_L2 = 2 / 6920  # scikit-learn's C = 1, for two weight vectors instead of one

SCRIPT = """
import gzip, pickle
from sklearn.feature_extraction.text import {kind}
from sklearn.linear_model import LogisticRegression
rows = [line.rstrip("\\n").split("\\t") for line in gzip.open({path!r}, "rt", encoding="utf-8")]
vectorizer, model = {kind}(), LogisticRegression()
model.fit(vectorizer.fit_transform([text for text, _ in rows]), [label for _, label in rows])
pickle.dump((vectorizer, model), open({out!r}, "wb"))
"""

Rows = tuple[list[str], list[str]]


def ours(features: str, l2: float | None) -> Callable[[Rows], tuple[Callable[[list[str]], list[str]], int]]:
    """Train as the recipe says, except for ``features`` and ``l2``; return (predict, steps)."""
    import numpy as np
    import torch

    from wordloom.data import BagBatches, BagVectorizer
    from wordloom.data.bags.vectorizer import smooth_idf
    from wordloom.data.rows.labelled import sorted_labels
    from wordloom.models import BagOfWordsConfig, build
    from wordloom.objectives import OBJECTIVES
    from wordloom.recipe import load_recipe
    from wordloom.run import TextClassifier
    from wordloom.run.models.text_readers import BagReader
    from wordloom.training import Trainer

    changes = [] if l2 is None else [f"train.l2={l2}"]
    recipe = load_recipe(RECIPE, changes)
    t = recipe.tokenizer

    def side(rows: Rows) -> tuple[Callable[[list[str]], list[str]], int]:
        texts, labels = rows
        vectorizer, counted = BagVectorizer.fit_counts(texts, split=str(t.split), lower=t.lower)
        names = sorted_labels(labels)
        number = {label: index for index, label in enumerate(names)}
        targets = np.array([number[label] for label in labels])
        batches = BagBatches(counted.rows, targets, order="sequential")
        id2label = {str(index): label for index, label in enumerate(names)}
        model = build(BagOfWordsConfig(vocab_size=len(vectorizer), id2label=id2label, features=features))
        if features == "tfidf":
            model.idf.copy_(torch.from_numpy(smooth_idf(counted.rows)))
        settings = recipe.train.model_copy(
            update={"batch_size": len(texts), "precision": "fp32", "device": "cpu"}
        )
        objective = OBJECTIVES["classification"]
        trainer = Trainer(model, objective, batches, settings, total_steps=int(settings.steps or 0))
        trainer.run()
        classifier = TextClassifier(model=model.eval(), reader=BagReader(vectorizer), config=model.config)
        return lambda new: [found.label for found in classifier.predict(new)], trainer.step

    return side


def theirs(
    kind: str, *, C: float = 1.0, **settings: Any
) -> Callable[[Rows], tuple[Callable[[list[str]], list[str]], int]]:
    from sklearn.feature_extraction import text
    from sklearn.linear_model import LogisticRegression

    def side(rows: Rows) -> tuple[Callable[[list[str]], list[str]], int]:
        vectorizer = getattr(text, kind)(**settings)
        model = LogisticRegression(C=C).fit(vectorizer.fit_transform(rows[0]), rows[1])
        return lambda new: model.predict(vectorizer.transform(new)).tolist(), int(model.n_iter_[0])

    return side


def read(part: str) -> Rows:
    from wordloom.data import labelled_rows

    rows = list(labelled_rows(f"sst2/{part}"))
    return [row.texts[0] for row in rows], [str(row.label) for row in rows]


def compete(sides: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every side's turns, after one turn of warm-up."""
    train = read("train")
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, rounds):
        for name in sorted(sides, reverse=number % 2 == 0):
            began = time.perf_counter()
            sides[name](train)
            if number >= 0:
                times[name].append(time.perf_counter() - began)
    return times


def commands(turns: int) -> dict[str, float]:
    """Return the median seconds of complete processes, from start to saved model."""
    from wordloom.data.sets.fetch import local_files

    with tempfile.TemporaryDirectory() as folder:
        path = str(local_files("sst2/train")[0])
        script = SCRIPT.format(kind="TfidfVectorizer", path=path, out=f"{folder}/model.pickle")
        lines = {
            "wordloom train": [sys.executable, "-m", "wordloom", "train", RECIPE, "--out", f"{folder}/run"],
            "script with scikit-learn": [sys.executable, "-c", script],
        }
        lines["wordloom train"].append("--force")
        subprocess.run(lines["wordloom train"][:-1], check=True, capture_output=True)
        times: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(turns):
            for name, line in lines.items():
                began = time.perf_counter()
                subprocess.run(line, check=True, capture_output=True)
                times[name].append(time.perf_counter() - began)
    return {name: round(statistics.median(taken), 2) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--commands", type=int, default=0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)

    import torch

    torch.set_num_threads(given.threads)
    load = os.getloadavg()[0]
    print(json.dumps({"machine": platform.machine(), "cores": os.cpu_count(), "load": load, **vars(given)}))
    words = {"token_pattern": r"\S+"}
    sides = {
        "wordloom, the recipe": ours("tfidf", None),
        "wordloom, binary": ours("binary", BINARY_L2),
        "CountVectorizer": theirs("CountVectorizer"),
        "TfidfVectorizer": theirs("TfidfVectorizer"),
        "CountVectorizer, our words, binary": theirs("CountVectorizer", binary=True, **words),
        "TfidfVectorizer, our words": theirs("TfidfVectorizer", **words),
        "TfidfVectorizer, our words, C=4": theirs("TfidfVectorizer", C=4, **words),
    }
    times = compete(sides, given.rounds)
    train, (texts, labels) = read("train"), read("dev")
    records = []
    for name, side in sides.items():
        predict, steps = side(train)
        right = sum(found == label for found, label in zip(predict(texts), labels, strict=True))
        record: dict[str, Any] = {"side": name, "accuracy": round(right / len(labels), 4), "steps": steps,
                                  "seconds": round(statistics.median(times[name]), 4)}  # fmt: skip
        if not name.startswith("wordloom"):
            alike = "wordloom, the recipe" if "Tfidf" in name else "wordloom, binary"
            for ratio, own in (("recipe's", "wordloom, the recipe"), ("same features'", alike)):
                pairs = zip(times[name], times[own], strict=True)
                record[f"time/{ratio}"] = round(statistics.median(t / o for t, o in pairs), 2)
        records.append(record)
        print(json.dumps(record), flush=True)
    if given.commands:
        print(json.dumps({"whole process, seconds": commands(given.commands)}), flush=True)

    print(f"\n{'side':38}{'accuracy':>9}{'steps':>7}{'seconds':>9}{'recipe':>8}{'alike':>8}")
    for r in records:
        ratios = "".join(f"{r[f'time/{key}']:8.2f}" for key in ("recipe's", "same features'") if len(r) > 4)
        print(f"{r['side']:38}{r['accuracy']:9.4f}{r['steps']:7}{r['seconds']:9.3f}{ratios}")


if __name__ == "__main__":
    in_one_line(main)
