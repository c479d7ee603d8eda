"""Run a notebook from top to bottom without Jupyter: `run_notebook.py NOTEBOOK [--write]`.

The script executes the code cells in order, in one namespace.  It compares the printed output and the value
of the last expression of each cell with the outputs in the file.  With --write it stores them in the file.
Standard error, and outputs of cells tagged "varies" (times, probabilities), are stored but never compared.
The first cell that fails ends the run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import sys
import types
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run(path: Path) -> list[tuple[dict[str, Any], list[Output]]]:
    """Execute the notebook; return each code cell with its new outputs."""
    module = types.ModuleType("__main__")
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    return [(cell, _outputs(cell, f"{path.name}[{n}]", n, vars(module))) for n, cell in enumerate(cells, 1)]


def read(path: Path) -> dict[str, Any]:
    """Return the notebook in the file ``path``."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def varies(cell: dict[str, Any]) -> bool:
    """Return whether the outputs of a cell differ from run to run."""
    return "varies" in cell["metadata"].get("tags", [])


def text_of(outputs: list[Output]) -> str:
    """Return the text of the outputs, without standard error."""
    compared = (output for output in outputs if output.get("name") != "stderr")
    return "".join("".join(output.get("text") or output["data"]["text/plain"]) for output in compared)


def _outputs(cell: dict[str, Any], name: str, number: int, namespace: dict[str, Any]) -> list[Output]:
    """Execute a cell and return its outputs in the notebook format."""
    source = "".join(cell["source"])
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    body = ast.parse(source, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    stdout, stderr = io.StringIO(), io.StringIO()
    value = None
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    streams = {"stderr": stderr.getvalue(), "stdout": stdout.getvalue()}
    outputs: list[Output] = [
        {"output_type": "stream", "name": stream, "text": text.splitlines(keepends=True)}
        for stream, text in streams.items()
        if text
    ]
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        result = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": number}
        outputs.append(result)
    return outputs


def main() -> None:
    """Run the notebook named by the arguments; exit with an error if an output differs."""
    path, write = Path(sys.argv[1]), "--write" in sys.argv[2:]
    notebook, executed = read(path), run(path)
    if write:
        cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        for number, (cell, (_, outputs)) in enumerate(zip(cells, executed, strict=True), 1):
            cell.update(outputs=outputs, execution_count=number)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    for number, (cell, outputs) in enumerate(executed, 1):
        if not varies(cell) and text_of(outputs) != text_of(cell["outputs"]):
            sys.exit(f"{path}: the output of code cell {number} has changed to:\n{text_of(outputs)}")


if __name__ == "__main__":
    main()
