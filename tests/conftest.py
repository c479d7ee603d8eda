"""For every test: one torch thread per worker, nothing from a hub, shards in a folder of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("house", max_examples=50)  # each run draws others
hypothesis.settings.load_profile("house")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two threads beside another worker must not spin
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers already use every core

# A shell that starts the tests in the background has them, and every process they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked ``gpu`` are skipped, and counted as such, where no CUDA device is."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two torch threads where a test is marked ``threads2``, one elsewhere."""
    wanted = 2 if request.node.get_closest_marker("threads2") else 1
    if "torch" not in sys.modules and wanted == 1:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Token shards of one test run are never another's."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("WORDLOOM_CACHE")
    os.environ["WORDLOOM_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["WORDLOOM_CACHE"]
    else:
        os.environ["WORDLOOM_CACHE"] = before
