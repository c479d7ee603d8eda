"""Print the `dev` dependency group of pyproject.toml, for pip before 25.1, which cannot read groups."""

import pathlib
import tomllib

project = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())
print(" ".join(project["dependency-groups"]["dev"]))
