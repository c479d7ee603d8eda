"""Print the `dev` dependency group of pyproject.toml, for pips that cannot read groups (before 25.1)."""

import pathlib
import tomllib

project = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())
print(" ".join(project["dependency-groups"]["dev"]))
