"""Fast paths of nn/ at sizes drawn anew on each run, also with guard pages around all tensors."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from tests.kernels import cases

from wordloom.kernels import programs

pytestmark = pytest.mark.skipif(
    not programs.ready(), reason="no OpenMP runtime or no numba: nothing is fused"
)

ROUNDS = 25
GUARDED = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.kernels import cases
from tests.kernels.guarded import guarded_programs
seed, seen = int(sys.argv[2]), set()
variants = len(cases.VARIANTS)  # each is run with guard pages behind and before its tensors
for name in cases.CASES:
    for n in range(2 * variants if name == "recurrence" else 12):
        at_end = n < variants if name == "recurrence" else n % 2 == 0
        print("next:", name, "seed", seed + n, flush=True)
        with guarded_programs(at_end=at_end) as names:
            cases.run(name, seed + n)
        seen |= set(names)
print("ran:", *sorted(seen))
"""


ROWS = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.kernels import row_cases
seed = int(sys.argv[2])
for n in range(60):
    print("next: seed", seed + n, flush=True)
    row_cases.run(seed + n, at_end=n % 2 == 0)
"""
BEYOND = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from tests.kernels.cases import every_size
from tests.kernels.guarded import guarded_programs
from wordloom.nn import fused
fused._float32 = lambda *given: True  # the look that keeps a short weight from the program
with every_size(), guarded_programs(at_end=True):
    print(fused.rms_norm(torch.ones(3, 40), torch.ones(40), 1e-6).sum().item(), flush=True)
    fused.rms_norm(torch.ones(3, 40), torch.ones(39), 1e-6)
"""


@pytest.mark.parametrize("name", cases.CASES)
def test_fast_paths_agree_with_their_slow_twins(name):
    for _ in range(ROUNDS):
        cases.run(name, random.SystemRandom().getrandbits(40))


def test_no_program_touches_memory_beyond_its_tensors(forked):
    """Guard pages stand before or behind each tensor; what reads there ends the process."""
    from wordloom.kernels import elementwise, recurrent
    from wordloom.kernels.attention import dense, sparse
    from wordloom.kernels.parallel import Kernel

    root = Path(__file__).parents[2]
    seed = random.SystemRandom().getrandbits(40)
    done = forked(root, seed, code=GUARDED).completed()
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, (done.returncode, lines[-1:], done.stderr[-3000:])
    every = {
        f"{module.__name__.removeprefix('wordloom.kernels.')}.{name}"
        for module in (dense, sparse, elementwise, recurrent)
        for name, value in vars(module).items()
        if isinstance(value, Kernel)
    }
    assert len(every) == 24
    assert set(lines[-1].removeprefix("ran: ").split()) == every


def test_kernels_on_rows_agree_with_numpy_on_guarded_memory(forked):
    seed = random.SystemRandom().getrandbits(40)
    done = forked(Path(__file__).parents[2], seed, code=ROWS).completed()
    assert done.returncode == 0, (done.returncode, done.stdout.decode()[-200:], done.stderr[-3000:])


def test_a_guard_page_ends_who_reads_one_element_too_many(forked):
    done = forked(Path(__file__).parents[2], code=BEYOND).completed()
    assert done.stdout.decode().split() == ["120.0"] or done.stdout.decode().startswith("119.99")
    assert done.returncode == -signal.SIGSEGV
