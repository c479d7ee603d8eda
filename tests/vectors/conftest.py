import numpy as np
import pytest

from wordloom.vectors import KeyedVectors

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="session")
def vectors() -> KeyedVectors:
    """500 words of random letters with random vectors of random lengths."""
    rng = np.random.default_rng(1)
    words: dict[str, None] = {}
    while len(words) < 500:
        words["".join(rng.choice(list(LETTERS), size=rng.integers(2, 8)))] = None
    values = rng.normal(size=(500, 20)) * rng.uniform(0.2, 3, size=(500, 1))
    return KeyedVectors(words, values.astype(np.float32))


def as_gensim(vectors: KeyedVectors):
    """The same words and vectors in gensim's class."""
    models = pytest.importorskip("gensim.models")
    theirs = models.KeyedVectors(vectors.vector_size)
    theirs.add_vectors(vectors.index_to_key, np.array(vectors.vectors))
    return theirs
