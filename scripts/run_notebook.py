"""Run a notebook top to bottom, as Jupyter would, without Jupyter: `run_notebook.py NOTEBOOK [--write]`.

Each code cell is executed in turn in one namespace.  What it prints, and the value of its last expression,
are compared with the outputs in the file, or with --write put there.  What goes to stderr, and outputs of
cells tagged "varies" (times, probabilities), are stored and not compared.  A cell that fails ends the run.
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
    """Every code cell of the notebook, with the outputs that it has now."""
    module = types.ModuleType("__main__")
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    return [(cell, _outputs(cell, f"{path.name}[{n}]", n, vars(module))) for n, cell in enumerate(cells, 1)]


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def varies(cell: dict[str, Any]) -> bool:
    """Whether the outputs of a cell are other ones in every run."""
    return "varies" in cell["metadata"].get("tags", [])


def text_of(outputs: list[Output]) -> str:
    """What outputs say, as one text, but for what went to stderr."""
    said = (out for out in outputs if out.get("name") != "stderr")
    return "".join("".join(out.get("text") or out["data"]["text/plain"]) for out in said)


def _outputs(cell: dict[str, Any], name: str, number: int, namespace: dict[str, Any]) -> list[Output]:
    source = "".join(cell["source"])
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    body = ast.parse(source, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, told = io.StringIO(), io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    streams = {"stderr": told.getvalue(), "stdout": printed.getvalue()}
    made: list[Output] = [
        {"output_type": "stream", "name": stream, "text": text.splitlines(keepends=True)}
        for stream, text in streams.items()
        if text
    ]
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        result = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": number}
        made.append(result)
    return made


def main() -> None:
    path, write = Path(sys.argv[1]), "--write" in sys.argv[2:]
    notebook, ran = read(path), run(path)
    if write:
        cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        for number, (cell, (_, outputs)) in enumerate(zip(cells, ran, strict=True), 1):
            cell.update(outputs=outputs, execution_count=number)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    for number, (cell, outputs) in enumerate(ran, 1):
        if not varies(cell) and text_of(outputs) != text_of(cell["outputs"]):
            sys.exit(f"{path}, code cell {number} says now:\n{text_of(outputs)}")


if __name__ == "__main__":
    main()
