"""Install litgpt into ``benchmarks/peers/.litgpt``, without its dependencies: its pins clash with ours.

    python benchmarks/peers/install_litgpt.py

What it needs besides (torch, tqdm, PyYAML, fsspec, ...) the development environment has already.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ["litgpt==0.5.13", "lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0"]


def main() -> None:
    target = Path(__file__).parent / ".litgpt"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--upgrade",
            "--target",
            str(target),
            *PACKAGES,
        ],
        check=True,
    )


if __name__ == "__main__":
    main()
