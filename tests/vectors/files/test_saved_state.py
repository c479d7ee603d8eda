"""The training state of word vectors on disk."""

from types import SimpleNamespace

import numpy as np
import pytest

from wordloom.errors import CheckpointError
from wordloom.vectors.files.saved_state import SavedState


def test_equal_states_are_equal_bytes(tmp_path):
    trainer = SimpleNamespace(job=3, jobs=7, state=lambda: {"inputs": np.arange(5.0), "losses": np.ones(2)})
    facts = {name: name.upper() for name in "abcdefgh"}
    written = set()
    for n in range(5):
        (tmp_path / str(n)).mkdir()
        state = SavedState(tmp_path / str(n))
        state.save(trainer, facts)
        written.add(state.file.read_bytes())
        arrays, found = state.load()
        assert list(arrays) == ["inputs", "losses"]
        assert {**facts, "job": "3", "jobs": "7"}.items() <= found.items()
        assert state.progress() == (3, 7)
    assert len(written) == 1


def test_damaged_facts_are_an_error_in_one_line(tmp_path):
    state = SavedState(tmp_path)
    state.save(SimpleNamespace(job=3, jobs=7, state=lambda: {"inputs": np.ones(2)}), {"a": "A"})
    content = state.file.read_bytes()
    assert content.count(b'"{') == 1
    state.file.write_bytes(content.replace(b'"{', b'"['))
    with pytest.raises(CheckpointError, match=r"cannot read .* start again with --force"):
        state.load()
    assert state.progress() == (0, 0)
