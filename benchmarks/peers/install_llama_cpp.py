"""Build llama.cpp for this processor, with its Python binding, into ``benchmarks/peers/.llama_cpp``.

    python benchmarks/peers/install_llama_cpp.py

It needs a C++ compiler and takes some minutes.  The package gguf, which writes its files, goes there too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ["llama-cpp-python==0.3.36", "diskcache==5.6.3", "gguf==0.19.0"]


def main() -> None:
    target = Path(__file__).parent / ".llama_cpp"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade", "--target", str(target)),
            *("--no-binary", "llama-cpp-python", *PACKAGES),
        ],
        env={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF", **os.environ},
        check=True,
    )


if __name__ == "__main__":
    main()
