"""Compare preparing token shards with the tokenizers library's own rate, and time a batch.

    python benchmarks/data.py [--megabytes 8] [--rounds 5] [--vocab-size 8192]

Both sides tokenize the same text with the same tokenizer on all cores.  Wordloom reads files, splits
documents, encodes them and writes shards to disk.  tokenizers calls ``encode_batch`` on documents that are
already in memory, and drops the result.  Rounds alternate, and medians are printed.  The text is Gutenberg's
if WORDLOOM_DATA is set, and Python's own documentation otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from entry import in_one_line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=8192)
    given = parser.parse_args()

    import tokenizers

    from wordloom.data import CausalBatches, Corpus, prepare
    from wordloom.text import Tokenizer

    name = "gutenberg/train" if "WORDLOOM_DATA" in os.environ else "python-docs/train"
    texts: list[str] = []
    size = 0
    for document in Corpus(sources=name, validation_fraction=0.0).documents("train"):
        texts.append(str(document.text))
        size += len(texts[-1].encode())
        if size >= given.megabytes * 1e6:
            break
    tokenizer = Tokenizer.train(texts, kind="bpe", vocab_size=given.vocab_size)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        tokenizer.save_pretrained(Path(folder) / "tokenizer")
        theirs = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer" / "tokenizer.json"))
        # what their rate depends on: long documents occupy one core each, so give them pieces as ours are cut
        pieces = [text[i : i + 65536] for text in texts for i in range(0, len(text), 65536)]
        times: dict[str, list[float]] = {"wordloom": [], "tokenizers": []}
        for round_number in range(given.rounds):
            corpus = Corpus(sources=str(path), validation_fraction=0.0)
            began = time.perf_counter()
            shards = prepare(corpus, tokenizer, part="train", cache=Path(folder) / f"cache-{round_number}")
            times["wordloom"].append(time.perf_counter() - began)
            began = time.perf_counter()
            theirs.encode_batch(pieces, add_special_tokens=False)
            times["tokenizers"].append(time.perf_counter() - began)
        rates = {side: size / 1e6 / statistics.median(taken) for side, taken in times.items()}
        row = {
            "benchmark": "prepare",
            "text": name,
            "megabytes": round(size / 1e6, 1),
            "vocab_size": tokenizer.vocab_size,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "wordloom_mb_per_s": round(rates["wordloom"], 2),
            "tokenizers_mb_per_s": round(rates["tokenizers"], 2),
            "ratio": round(rates["wordloom"] / rates["tokenizers"], 2),
        }
        print(json.dumps(row))

        for order in ("permutation", "random"):
            batches = CausalBatches(shards, seq_len=256, seed=1, order=order)
            taken = []
            for start in range(0, 64 * 200, 64):
                began = time.perf_counter()
                batches.batch(start, 64)
                taken.append(time.perf_counter() - began)
            print(json.dumps({"benchmark": "batch of 64 x 256", "order": order,
                              "milliseconds": round(1000 * statistics.median(taken), 3)}))  # fmt: skip


if __name__ == "__main__":
    in_one_line(main)
