"""How every benchmark starts: a mistake of the user ends in one line and exit code 2, as in the command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["in_one_line"]


def in_one_line(main: Callable[[], None]) -> None:
    """Call ``main``; report a missing data set, run or file in one line on standard error and exit with 2."""
    from wordloom.errors import WordloomError

    try:
        main()
    except WordloomError as error:
        message = str(error)
    except FileNotFoundError as error:
        message = f"{error.filename} does not exist; name a file or folder that does"
    else:
        return
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)
