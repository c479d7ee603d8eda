import gzip
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from wordloom.text import TOKENIZERS, Tokenizer

SIZES = {"bpe": 700, "wordpiece": 700, "unigram": 900, "word": None, "char": None, "byte": None}


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """English text that every Python carries, about 120 kB in 20 documents."""
    return [topics[name][:6000] for name in sorted(topics) if len(topics[name]) > 3000][:20]


@pytest.fixture(scope="session")
def trained(corpus: list[str]) -> dict[str, Tokenizer]:
    """A tokenizer of each kind."""
    return {kind: Tokenizer.train(corpus, kind=kind, vocab_size=SIZES[kind]) for kind in TOKENIZERS}


@pytest.fixture(scope="session")
def gpt2_folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2's own two files."""
    folder = tmp_path_factory.mktemp("gpt2")
    for packed, name in (("gpt2-encoder.json", "encoder.json"), ("gpt2-vocab.bpe", "vocab.bpe")):
        (folder / name).write_bytes(gzip.decompress((data / "tokenizers" / f"{packed}.gz").read_bytes()))
    return folder


@pytest.fixture(scope="session")
def shakespeare(data: Path) -> str:
    return gzip.decompress((data / "tiny-shakespeare" / "input.txt.gz").read_bytes()).decode()
