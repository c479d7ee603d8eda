"""Compiled decoding programs read and write nothing outside the arrays that they are given."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the guard pages are made by mprotect")

CODE = f"import runpy; runpy.run_path({str(Path(__file__).with_name('guarded.py'))!r}, run_name='__main__')"


def test_programs_stay_within_their_arrays(command: Callable) -> None:
    done = command(code=CODE)
    cases = done.stdout.decode().splitlines()
    assert done.returncode == 0, f"{cases[-1:]} ended with {done.returncode}\n{done.stderr}"
    assert cases[-1] == "all done"


@pytest.mark.parametrize("side", ["behind", "in front"])
def test_a_read_outside_an_array_ends_the_process(side: str, command: Callable) -> None:
    done = command(side, code=CODE)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS)  # the second on macOS
    assert done.stdout == b"read\n"  # the first product lies within its arrays, the second does not
