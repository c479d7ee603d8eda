"""Compare word-vector training on a GPU with the CPU kernels: words per second and scores.

    python benchmarks/vectors_gpu.py [--device cuda] [--data gutenberg/train] [--architectures skipgram cbow]
                                     [--rounds 3] [--epochs 5] [--speed-only]

Settings are those of benchmarks/vectors.py (gensim's defaults).  Speed is measured over one epoch after a
warm-up; sides take turns, and medians are printed.  Quality is measured on one run of ``--epochs`` for each
side.  The CPU side uses every core that the process may use.  Without a CUDA device, the benchmark reports
that and measures nothing.  ``--device cpu`` runs the torch program on the CPU to check that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from entry import in_one_line

from vectors import judge, prepare

SIDES = ("numba", "torch", "torch deterministic")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="gutenberg/train")
    parser.add_argument(
        "--architectures", nargs="+", choices=["skipgram", "cbow"], default=["skipgram", "cbow"]
    )
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side for speed")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of a run for quality")
    parser.add_argument("--speed-only", action="store_true")
    args = parser.parse_args()

    import torch

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        note = "no CUDA device on this machine: nothing was measured"
        print(json.dumps({"benchmark": "vectors_gpu", "gpu": None, "note": note}))
        sys.exit(0)
    gpu = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else None
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), args.data)
        facts = {"benchmark": "vectors_gpu", "gpu": gpu, "cores": len(os.sched_getaffinity(0))}
        busy = round(os.getloadavg()[0], 2)
        print(json.dumps({**facts, "torch": torch.__version__, "load_average": busy, **text}), flush=True)
        for architecture in args.architectures:
            measure(text, architecture, args)


def measure(text: dict[str, Any], architecture: str, args: Any) -> None:
    from wordloom.data.shards.storage import TokenShards
    from wordloom.vectors import WordVocabulary
    from wordloom.vectors.word2vec.trainer import TrainingCorpus

    vocabulary = WordVocabulary.load(text["folder"], split="words", lower=True)
    corpus = TrainingCorpus.cut(TokenShards(text["shards"]))

    def timed(side: str, epochs: int) -> tuple[float, Any]:
        made = trainer(side, corpus, vocabulary.counts, architecture, epochs, args)
        began = time.perf_counter()
        while not made.done:
            figures = made.run()  # returns when the device has finished
        rate = epochs * text["words"] / (time.perf_counter() - began)
        return rate, (made, figures)

    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        trainer(side, corpus, vocabulary.counts, architecture, 1, args).run()  # compile, and allocate memory
    for _ in range(args.rounds):
        for side in SIDES:
            rates[side].append(timed(side, 1)[0])
    medians = {side: statistics.median(found) for side, found in rates.items()}
    for side in SIDES:
        line = {
            "architecture": architecture,
            "side": side,
            "words_per_second": round(medians[side]),
            "ratio_to_numba": round(medians[side] / medians["numba"], 2),
        }
        if not args.speed_only:
            _, (made, figures) = timed(side, args.epochs)
            known = judge(vocabulary.words, made.inputs)
            line |= {"kernel": made.kernel, "epochs": args.epochs, "loss": round(figures.loss, 4)}
            line |= {name: round(value, 4) for name, value in known.items()}
        print(json.dumps(line), flush=True)


def trainer(side: str, corpus: Any, counts: Any, architecture: str, epochs: int, args: Any) -> Any:
    from wordloom.vectors.word2vec.torch_trainer import TorchWordTrainer
    from wordloom.vectors.word2vec.trainer import WordTrainer

    s = SimpleNamespace(
        architecture=architecture, dim=args.dim, window=5, negative=5, exponent=0.75, sample=1e-3,
        alpha=0.025, min_alpha=1e-4, mean=True, deterministic=side.endswith("deterministic"), epochs=epochs,
    )  # fmt: skip
    if side == "numba":
        return WordTrainer(corpus, counts, s, seed=1)
    return TorchWordTrainer(corpus, counts, s, seed=1, device=args.device)


if __name__ == "__main__":
    in_one_line(main)
