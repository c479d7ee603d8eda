from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from wordloom.data.ledgers import Ledger
from wordloom.data.shards.storage import ShardWriter, TokenShards
from wordloom.text import Tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's cache."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("WORDLOOM_CACHE", str(cache))
    return cache


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("WORDLOOM_DATA")
    if not folder:
        pytest.skip("WORDLOOM_DATA is not set: the public data sets are not here")
    return Path(folder)


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return Tokenizer.train([], kind="byte")


@pytest.fixture
def make_shards(tmp_path: Path):
    """Shards from lists of ids, one list per document, without a tokenizer."""

    def make(*documents: list[int], vocab_size: int = 1000, pad_id: int | None = None) -> TokenShards:
        folder = tmp_path / f"shards-{len(list(tmp_path.iterdir()))}"
        writer = ShardWriter(folder, vocab_size=vocab_size)
        ends = np.cumsum([len(document) for document in documents]).tolist()
        ids = np.array([i for document in documents for i in document], writer.dtype)
        writer.add(ids, ends, [len(d) for d in documents], [(0, n) for n in range(len(documents))])
        ledger = Ledger(
            part="train", split="none", files=1, documents=len(documents), tokens=len(ids), bytes=len(ids)
        )
        meta = {"fingerprint": "f", "vocab_size": vocab_size, "eos_id": None, "pad_id": pad_id}
        writer.finish({**meta, "sources": ["made"], "ledger": ledger.as_dict()})
        return TokenShards(folder)

    return make
