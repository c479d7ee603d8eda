"""Token shards of documents that are given as ids."""

import hashlib
import itertools
from pathlib import Path

import numpy as np

from wordloom.data import TokenShards
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.storage import ShardWriter

_numbers = itertools.count()


def make_shards(folder: Path, documents, vocab_size: int) -> TokenShards:
    """Shards on disk, as ``prepare`` writes them."""
    target = folder / f"shards-{next(_numbers)}"
    ids = np.concatenate([np.asarray(document, dtype=np.int64) for document in documents])
    ends = np.cumsum([len(document) for document in documents]).tolist()
    writer = ShardWriter(target, vocab_size=vocab_size)
    writer.add(ids, ends, [0] * len(ends), [(0, n) for n in range(len(ends))])
    ledger = Ledger(
        part="all", split="none", files=1, documents=len(ends), tokens=len(ids), bytes=0, dropped={}, cut={}
    )
    content = ids.tobytes() + np.array(ends).tobytes()
    writer.finish(
        {
            "fingerprint": hashlib.sha256(content).hexdigest(),
            "vocab_size": vocab_size,
            "eos_id": None,
            "pad_id": None,
            "sources": ["made"],
            "ledger": ledger.as_dict(),
        },
    )
    return TokenShards(target)


def zipf_documents(n: int, vocab_size: int, *, longest: int = 40, seed: int = 0) -> list[np.ndarray]:
    """Documents in which word w is drawn about in proportion to 1 / (w + 1)."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, vocab_size + 1)
    return [
        rng.choice(vocab_size, size=rng.integers(1, longest), p=share / share.sum()).astype(np.int64)
        for _ in range(n)
    ]
