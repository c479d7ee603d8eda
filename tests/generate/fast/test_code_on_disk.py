"""Decoding gives the same bits with programs just compiled and with programs read from disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

CODE = """
import sys, numba
numba.config.CACHE_DIR = sys.argv[2]  # before the programs are imported
sys.path.insert(0, sys.argv[1])
from tests.generate.fast import test_recurrent, test_transformer
from tests.generate.tiny_models import FAMILIES, read, tiny_model
from wordloom.generate import Sampling, beam_search, generate
name = sys.argv[3]
if name == "transformer":
    given = {**test_transformer.GIVEN, "beams": 4, "vocab_size": 80}
    memory = read(test_transformer.made(), test_transformer.SOURCES)
    for row in beam_search(memory, test_transformer.START, **given):
        print(row)
else:
    model = tiny_model(name) if name in FAMILIES else test_recurrent.made(name)
    for row in generate(model, [[1, 2, 3], [4], [5, 6, 7, 8, 9]], Sampling(), seed=5, max_new_tokens=12):
        print(row)
"""
MODELS = ("gpt", "gpt2", "llama", "lstm", "gru", "transformer")


def test_code_from_disk_gives_the_bits_of_code_just_compiled(forked: Callable, tmp_path: Path) -> None:
    name = random.SystemRandom().choice(MODELS)
    printed = []
    for _ in range(2):
        done = forked(Path(__file__).parents[3], tmp_path, name, code=CODE).completed()
        assert done.returncode == 0, (name, done.stderr)
        printed.append(done.stdout)
    assert list(tmp_path.rglob("*.nbc"))
    assert b"logprob" in printed[0]
    assert printed[0] == printed[1], name
