"""Gigabytes of tokens, in sparse files: reading them does not take memory."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
GIGABYTES = 4

SCRIPT = """
import json, re, sys
from pathlib import Path
from wordloom.data import CausalBatches
from wordloom.data.shards.prepared import PreparedFolder

def own_pages():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3

shards = PreparedFolder(sys.argv[1]).open("train")
batches = CausalBatches(shards, seq_len=512, seed=3, document_mask=True)
sizes = []
for n in range(3000):
    batches.batch(16 * n, 16)
    if n % 250 == 249:
        sizes.append(own_pages())
for at in range(0, len(shards), 1 << 24):
    shards.ids[at : at + (1 << 20)].max()
sizes.append(own_pages())
print(json.dumps({"tokens": len(shards), "sizes": sizes}))
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A merged folder of sparse files."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("data_at_scale", BENCHMARKS / "data_at_scale.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    shares = 8
    module.write_corpus(tmp_path / "corpus", shares, int(GIGABYTES * 1e9 / 2 / shares) // 1000 * 1000)
    return tmp_path / "corpus"


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say what is anonymous"
)
def test_own_memory_does_not_grow_with_what_is_read(corpus: Path) -> None:
    on_disk = sum(path.stat().st_blocks * 512 for path in corpus.rglob("*.bin"))
    if on_disk > 1e9:
        pytest.skip("the file system has no sparse files")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(corpus)], capture_output=True, text=True, check=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["tokens"] == GIGABYTES * 500_000_000
    assert max(found["sizes"]) - found["sizes"][0] < 40, found["sizes"]


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say what is anonymous"
)
def test_training_on_them_does_not_take_more_either(corpus: Path, tmp_path: Path) -> None:
    from wordloom.text import Tokenizer

    tokenizer = Tokenizer.train(["a few words of text"], kind="byte")
    tokenizer.save_pretrained(corpus / "tokenizer")
    index = json.loads((corpus / "shards.json").read_text())
    index |= {"tokenizer": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size}
    (corpus / "shards.json").write_text(json.dumps(index))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""
        [data]
        train = "{corpus}"
        validation_fraction = 0
        [model]
        family = "gpt2"
        dim = 16
        n_layers = 1
        n_heads = 2
        [train]
        steps = 400
        seq_len = 128
        batch_size = 8
        learning_rate = 1e-3
        device = "cpu"
        precision = "fp32"
        log_every = 50
        evaluate_every = 0
        """
    )
    script = (
        "import re, sys\n"
        "from wordloom.training.hooks import Log\n"
        "write = Log.write\n"
        "def measured(self, trainer, line):\n"
        "    write(self, trainer, line)\n"
        "    status = open('/proc/self/status').read()\n"
        "    print('RssAnon', re.search(r'RssAnon:\\s+(\\d+)', status)[1], file=sys.stdout, flush=True)\n"
        "Log.write = measured\n"
        "from wordloom.run import train\n"
        f"train({str(recipe)!r}, out={str(tmp_path / 'run')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    sizes = [int(size) / 1e3 for size in re.findall(r"RssAnon (\d+)", done.stdout)]
    assert len(sizes) >= 8
    assert sizes[-1] - sizes[1] < 40, sizes
