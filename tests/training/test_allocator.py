"""The allocator's settings, each in a process of its own: they last as long as it does."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from wordloom.training.allocator import _read

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")

_STEPS = """
import json, resource, sys
import torch
from wordloom.training import tune_allocator

def memory():
    lines = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return {name: int(lines[name].split()[0]) for name in ("AnonHugePages", "Rss")}
untouched = memory()["Rss"]
if sys.argv[1] == "tuned":
    assert tune_allocator() and tune_allocator()
grown = memory()["Rss"] - untouched
def step():
    blocks = [torch.ones(10 << 20) for _ in range(4)]  # 40 MiB each: above all that glibc keeps by itself
    return sum(float(block[0]) for block in blocks)
step(); step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = torch.ones(16 << 20)
print(json.dumps({"faults": faults, "large_kib": memory()["AnonHugePages"], "grown_kib": grown}))
"""


def measured(how: str) -> dict[str, int]:
    ran = subprocess.run([sys.executable, "-c", _STEPS, how], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def test_blocks_are_kept_between_steps_and_lie_in_large_pages():
    tuned, system = measured("tuned"), measured("system")
    setting = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    if "[always]" not in setting:
        assert system["faults"] > 100_000  # 800 MiB in pages of 4 KiB are 200,000
    assert tuned["faults"] < 1_000
    if "[madvise]" in setting:
        assert tuned["large_kib"] > 32 << 10
        assert system["large_kib"] < tuned["large_kib"]
    # the heap was grown by the machine's memory in addresses and by next to nothing in memory; what the steps
    # leave resident says little: where blocks of 40 MiB come to lie differs from process to process
    assert tuned["grown_kib"] < 16 << 10


def test_without_large_pages_the_rest_still_holds(monkeypatch):
    for setting in ("always madvise [never]", ""):
        monkeypatch.setattr("wordloom.training.allocator._read", lambda path, setting=setting: setting)
        from wordloom.training.allocator import _large_pages

        assert _large_pages(None) is False
    strict = {"/sys/kernel/mm/transparent_hugepage/enabled": "[madvise]"}
    monkeypatch.setattr("wordloom.training.allocator._read", lambda path: strict.get(path, "2"))
    assert _large_pages(None) is False
    monkeypatch.setattr("wordloom.training.allocator._read", lambda path: "[always] madvise never")
    assert _large_pages(None) is True
