"""``wordloom serve --selfcheck``: it passes on any model, and finds rows that are not exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serve.tiny import save_tiny

from wordloom.errors import WordloomError
from wordloom.generate.exact_rows import ProgramRows
from wordloom.models import LlamaConfig, build
from wordloom.serve.limits import Limits
from wordloom.serve.models import Source
from wordloom.serve.selfcheck import check_all
from wordloom.text import Tokenizer
from wordloom.weights import save_model


def checked(folder: Path, *, dtype: str = "auto", slots: int = 8) -> str:
    said: list[str] = []
    check_all({"m": Source(folder)}, Limits(slots=slots), device="cpu", dtype=dtype, say=said.append)
    (line,) = said
    return line


def test_a_window_in_8_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows were once read in pieces that overwrote what their first tokens see."""
    folder = save_tiny(tmp_path / "window", attention="band:30", n_layers=6)
    assert "equal those alone" in checked(folder, dtype="int8")
    made = ProgramRows.__init__

    def too_many_at_once(self: ProgramRows, program: object, room: int) -> None:
        made(self, program, room)
        self.most_read = 256

    monkeypatch.setattr(ProgramRows, "__init__", too_many_at_once)
    with pytest.raises(WordloomError, match="another answer beside others than alone"):
        checked(folder, dtype="int8")


def test_a_tokenizer_without_digits_and_a_single_slot(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["abc cab"], kind="char")
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, dim=16, n_layers=1, n_heads=1, max_seq_len=9)
    save_model(build(config), tmp_path / "letters", tokenizer=tokenizer)
    assert "equal those alone" in checked(tmp_path / "letters", slots=1)
