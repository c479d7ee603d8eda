import subprocess
import sys


def test_importing_text_is_light():
    """The tokenizers and tiktoken libraries load when first used, torch never."""
    code = "import sys, wordloom.text, wordloom.cli.tokenize; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert "wordloom.text.tokenizer" in loaded
    assert not {"torch", "tokenizers", "tiktoken", "transformers", "sentencepiece", "pydantic"} & loaded


def test_importing_text_takes_little_memory():
    code = (
        "import tracemalloc, numpy; tracemalloc.start(); import wordloom.text.formats.sentencepiece; "
        "print(tracemalloc.get_traced_memory()[0])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 8_000_000


def test_sentencepiece_models_need_no_sentencepiece(data, monkeypatch):
    from wordloom.text import Tokenizer

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert Tokenizer.from_pretrained(data / "tokenizers" / "llama-tokenizer.model").encode_ids("Hello") == [
        15043
    ]
