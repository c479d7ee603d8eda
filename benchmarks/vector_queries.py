"""Compare nearest-word queries with gensim, and measure loading and saving.

    python benchmarks/vector_queries.py [--words 400000] [--dim 300] [--rounds 40]
    python benchmarks/vector_queries.py --opening [--words 1000000 --dim 250] [--rounds 5]

Both sides hold the same random vectors and answer the same queries in turns, and the order within a turn
alternates.  Medians are printed, and the median of the ratios of each turn.  gensim comes with the
development group; without it only Wordloom is timed.

``--opening`` writes the vectors as a word2vec binary and opens it, each time in its own process.  It reports
the seconds and memory until the file is open, the first word's vector, and the first query that needs all
vectors.  Wordloom is measured without a cache, and with the cache of an earlier time.
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
from pathlib import Path
from typing import Any

from entry import in_one_line


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def opening(vectors: Any, rounds: int) -> None:
    """Print the medians of opening a binary file of ``vectors``."""
    from wordloom.vectors import save_word2vec

    found: dict[str, list[dict[str, float]]] = {"first time": [], "from then on": [], "gensim": []}
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "v.bin"
        save_word2vec(vectors, binary)
        time.sleep(3)  # a file that was just written is not cached
        for number in range(rounds):
            for side, runs in found.items():
                cache = Path(folder) / f"cache-{number}"
                command = [sys.executable, __file__, "--open", side, str(binary)]
                env = {**os.environ, "WORDLOOM_CACHE": str(cache)}
                runs.append(json.loads(subprocess.check_output(command, env=env, text=True)))
        print(json.dumps({"megabytes": round(binary.stat().st_size / 1e6)}))
    for side, runs in found.items():
        medians = {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
        print(json.dumps({"opened": side, **medians}), flush=True)


def opened(side: str, path: str) -> dict[str, float]:
    """Return what opening ``path`` costs in this process."""
    import psutil

    if side == "gensim":
        from gensim.models import KeyedVectors as Peer

        load = lambda: Peer.load_word2vec_format(path, binary=True)  # noqa: E731
    else:
        from wordloom.vectors import load_word2vec

        load = lambda: load_word2vec(path)  # noqa: E731
    process = psutil.Process()
    before, began = process.memory_info().rss, time.perf_counter()
    wv = load()
    figures = {"open_seconds": time.perf_counter() - began}
    figures["memory_mb"] = (process.memory_info().rss - before) / 1e6
    figures["first_vector_ms"] = 1e3 * seconds(lambda: wv["word77"])
    figures["first_most_similar_seconds"] = seconds(lambda: wv.most_similar("word77"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--rounds", type=int, help="[default: 40; 5 for --opening]")
    parser.add_argument("--opening", action="store_true", help="time opening a word2vec binary instead")
    parser.add_argument("--open", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        print(json.dumps(opened(*given.open)))
        return
    given.rounds = given.rounds or (5 if given.opening else 40)

    import numpy as np

    from wordloom.vectors import (
        KeyedVectors,
        UnknownWordError,
        load_vectors,
        load_word2vec,
        save_vectors,
        save_word2vec,
    )

    try:
        from gensim.models import KeyedVectors as Peer
    except ImportError:
        Peer = None
        print("gensim is not installed: ours is timed alone")

    load = os.getloadavg()[0]
    print(json.dumps({"machine": platform.machine(), "cores": os.cpu_count(), "load": load, **vars(given)}))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((given.words, given.dim), dtype=np.float32)
    words = [f"word{row}" for row in range(given.words)]
    ours = KeyedVectors(words, values)
    if given.opening:
        opening(ours, given.rounds)
        return
    sides: dict[str, Any] = {"wordloom": ours}
    if Peer is not None:
        theirs = Peer(given.dim)
        theirs.index_to_key, theirs.key_to_index, theirs.vectors = words, ours.key_to_index, values
        sides["gensim"] = theirs

    questions: dict[str, Callable[[Any, str, str, str], Any]] = {
        "most_similar, one word": lambda wv, a, b, c: wv.most_similar(a),
        "most_similar, analogy": lambda wv, a, b, c: wv.most_similar(positive=[a, b], negative=[c]),
        "most_similar_cosmul": lambda wv, a, b, c: wv.most_similar_cosmul(positive=[a, b], negative=[c]),
        "rank": lambda wv, a, b, c: wv.rank(a, b),
    }
    rows = []
    for name, ask in questions.items():
        times: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(-2, given.rounds):  # two warm-up turns
            a, b, c = (words[row] for row in rng.integers(0, given.words, size=3))
            for side in sorted(sides, reverse=number % 2 == 0):
                times[side].append(seconds(lambda: ask(sides[side], a, b, c)))  # noqa: B023
        medians = {side: statistics.median(taken[2:]) for side, taken in times.items()}
        record: dict[str, Any] = {"question": name, **{f"{s}_ms": 1e3 * t for s, t in medians.items()}}
        if "gensim" in times:
            turns = zip(times["gensim"][2:], times["wordloom"][2:], strict=True)
            record["gensim/wordloom"] = statistics.median(their / our for their, our in turns)
        print(json.dumps(record), flush=True)
        rows.append(record)

    with tempfile.TemporaryDirectory() as folder:
        binary, own = Path(folder) / "v.bin", Path(folder) / "own"
        costs = {"save_word2vec, binary": seconds(lambda: save_word2vec(ours, binary))}
        costs["load_word2vec, binary (opened, mapped)"] = seconds(lambda: load_word2vec(binary))
        if Peer is not None:
            costs["gensim's load_word2vec_format, binary (read)"] = seconds(
                lambda: Peer.load_word2vec_format(str(binary), binary=True)
            )
        costs["save_vectors"] = seconds(lambda: save_vectors(ours, own))
        costs["load_vectors (memory-mapped)"] = seconds(lambda: load_vectors(own))
    for slip in ("wrod77", "completely else"):
        try:
            ours[slip]
        except UnknownWordError as unknown:
            costs[f"the message about {slip!r}"] = seconds(unknown.__str__)
    print(json.dumps({name: round(taken, 4) for name, taken in costs.items()}))

    print(f"\n{'question':28}" + "".join(f"{side + ' ms':>14}" for side in sides) + f"{'ratio':>9}")
    for record in rows:
        cells = "".join(f"{record[f'{side}_ms']:14.1f}" for side in sides)
        print(f"{record['question']:28}{cells}" + f"{record.get('gensim/wordloom', float('nan')):9.2f}")


if __name__ == "__main__":
    in_one_line(main)
