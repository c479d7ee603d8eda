"""Start a benchmark; end with one line and exit code 2 if the user has to put something right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["in_one_line"]


def in_one_line(main: Callable[[], None]) -> None:
    """Call ``main``; report a missing data set, run, file or package in one line and exit with 2."""
    from wordloom.errors import WordloomError

    try:
        main()
    except WordloomError as error:
        message = str(error)
    except FileNotFoundError as error:
        message = f"{error.filename} does not exist; name a file or folder that does"
    except ModuleNotFoundError as error:
        message = (
            f"the package {error.name} is not installed; `make install` installs all that benchmarks need"
        )
    else:
        return
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)
