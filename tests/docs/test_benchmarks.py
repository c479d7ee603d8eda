"""Benchmarks without their data: one clear line and exit code 2, no traceback."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_is_entered_through_in_one_line(script: Path) -> None:
    text = script.read_text()
    assert re.search(r'^if __name__ == "__main__":\n    in_one_line\(main\)\n\Z', text, re.MULTILINE)
    assert "\nfrom entry import in_one_line\n" in text


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("bag_of_words", [], "data set 'sst2/train'"),
        ("data", [], "data set 'gutenberg/train'"),
        ("vectors", [], "data set 'gutenberg/train'"),
        ("translation_training", [], "data set 'multi30k/train.de'"),
        ("tuning", ["--quick"], "data set 'instruction-1100'"),
        (
            "bert_peer",
            ["bert-mini-gutenberg", "train.optimizer=adamw", "--out", "{place}/out"],
            "data set 'gut",
        ),
        ("translation", ["{place}/run"], "run does not exist"),
        ("encoders", ["--part", "encode", "--quick"], "data set 'squad-sample/dev'"),
        ("vectors_gpu", ["--device", "cpu", "--speed-only"], "data set 'gutenberg/train'"),
    ],
)
def test_a_missing_data_set_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.setenv("WORDLOOM_DATA", str(tmp_path))
    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the benchmarks set it
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *(given.format(place=tmp_path) for given in arguments)])
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert stopped.value.code == 2
    *progress, line = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in said for said in progress)
    assert line.startswith(f"{name}.py: ")
    assert says in line


def test_a_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    in_one_line = importlib.import_module("entry").in_one_line
    with pytest.raises(SystemExit) as stopped:
        in_one_line(lambda: importlib.import_module("no_package_of_this_name"))
    assert stopped.value.code == 2
    assert "the package no_package_of_this_name is not installed" in capsys.readouterr().err
