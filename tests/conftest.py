"""For every test: one torch thread per worker, nothing from a hub, shards in a folder of their own."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import typer.testing

# Each run draws others, and none is timed.
hypothesis.settings.register_profile("house", max_examples=30, deadline=None)
hypothesis.settings.load_profile("house")

os.environ["OMP_NUM_THREADS"] = "1"  # whatever the shell says: tests compare bit for bit across fixtures
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two threads beside another worker must not spin
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers already use every core

# A shell that starts the tests in the background has them, and every process they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Only a loss of power would tell what was not yet written through; waiting for it took an eighth of the time.
os.fsync = lambda file: os.fstat(file) and None
# Of every verb's options, which no test changes.
typer.testing._get_command = functools.cache(typer.testing._get_command)

gc.disable()  # collecting imports everything and frees nothing


def pytest_collection_finish() -> None:
    """Hundreds of thousands of objects of libraries and tests stay to the end: look for no cycles in them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked ``gpu`` are skipped, and counted as such, where no CUDA device is."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; without it, the test is skipped."""
    folder = os.environ.get("WORDLOOM_DATA")
    if not folder:
        pytest.skip("WORDLOOM_DATA is not set")
    return Path(folder)


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


# What a process of the command line is made from: it has imported what a verb would, and does nothing else.
FORKS = multiprocessing.get_context("forkserver")
VERBS = ["wordloom.cli", "wordloom.run", "wordloom.run.vectors.train"]
IN_TIME = ["torch._dynamo", "numba.np.arraymath", "numba.np.npyimpl"]  # by an optimizer, by a kernel
FORKS.set_forkserver_preload([*VERBS, *IN_TIME])

BEGIN = """
import os, sys
os.environ.clear()
os.environ.update(environment)
os.chdir(folder)
os.dup2(os.open(read, os.O_RDONLY), 0)
os.dup2(os.open(written, os.O_WRONLY), 1)
os.dup2(errors.fileno(), 2)
errors.close()
sys.stdin = open(0, encoding="utf-8", closefd=False)
sys.argv = ["wordloom", *arguments]
exec(code, {"__name__": "__main__"})
"""
COMMAND = "from wordloom.cli import main; main()"


class Forked:
    """Python code in a process of its own, begun with the library imported: that takes seconds otherwise.

    It is a process like any other: it can be killed, stopped and limited, and knows nothing of the test's.
    """

    def __init__(
        self, *arguments: object, code: str = COMMAND, cwd: Path | None = None, stdin: bytes = b"",
        **environment: str,
    ) -> None:  # fmt: skip
        self.files = Path(tempfile.mkdtemp())
        (self.files / "read").write_bytes(stdin)
        (self.files / "written").touch()
        reader, writer = FORKS.Pipe(duplex=False)
        given = {
            "arguments": [str(argument) for argument in arguments],
            "code": code,
            "environment": {**os.environ, **environment},
            "errors": writer,
            "folder": str(cwd or Path.cwd()),
            "read": str(self.files / "read"),
            "written": str(self.files / "written"),
        }
        self.process = FORKS.Process(target=exec, args=(BEGIN, given))
        self.process.start()
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()
        writer.close()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def completed(self) -> subprocess.CompletedProcess:
        """Wait for its end; what it wrote, of standard output the bytes."""
        with self.stderr:
            errors = self.stderr.read()
        self.process.join()
        said = (self.files / "written").read_bytes()
        shutil.rmtree(self.files)
        return subprocess.CompletedProcess([], self.returncode, said, errors)

    def communicate(self) -> tuple[str, str]:
        done = self.completed()
        return done.stdout.decode(), done.stderr


@pytest.fixture
def forked() -> Iterator[Callable[..., Forked]]:
    """A function that starts ``wordloom ARGUMENTS``, or ``code`` given these arguments."""
    started = []

    def start(*arguments: object, **more: object) -> Forked:
        started.append(Forked(*arguments, **more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.join()


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess]:
    """A function that runs ``wordloom ARGUMENTS`` to its end."""
    return lambda *arguments, **more: Forked(*arguments, **more).completed()


@pytest.fixture(scope="session")
def printed(command: Callable) -> Callable[..., subprocess.CompletedProcess]:
    """A function that runs ``wordloom ARGUMENTS`` to its end; its input and both outputs are texts."""

    def run(*arguments: object, stdin: str = "", **more: object) -> subprocess.CompletedProcess:
        done = command(*arguments, stdin=stdin.encode(), **more)
        return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr)

    return run


@pytest.fixture
def rng() -> random.Random:
    """Random numbers that differ in each run; torch draws by the same seed."""
    import torch

    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    torch.manual_seed(seed)
    return random.Random(seed)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser, of which a process can have one; without it, the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives it, is missing")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: pages are not tested")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
