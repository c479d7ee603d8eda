import subprocess
import sys

import pytest

import wordloom.vectors


def test_importing_vectors_is_light():
    """Vectors are read and asked without torch, numba, scipy or the peer."""
    code = "import sys, wordloom.vectors as v; v.load_vectors; v.evaluate_word_pairs; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert "wordloom.vectors.store.evaluation" in loaded
    assert not {"torch", "numba", "scipy", "gensim"} & loaded


def test_every_name_is_there():
    for name in wordloom.vectors.__all__:
        assert getattr(wordloom.vectors, name).__module__.startswith("wordloom.vectors.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        wordloom.vectors.nothing  # noqa: B018
