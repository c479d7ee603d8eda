"""GGUF files: llama.cpp gives our ids and our greedy text, and transformers our logits."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import CheckpointError
from wordloom.models import GPT2Config, GPTConfig, LlamaConfig, RNNConfig, build
from wordloom.run.export.gguf import export_gguf
from wordloom.run.export.gguf_tokenizer import tokenizer_fields
from wordloom.text import Tokenizer
from wordloom.text.chat.encoding import template_of
from wordloom.text.chat.message import Message
from wordloom.text.chat.template import shipped_source
from wordloom.weights import save_model

WORDS = [
    *("the", "a", "cat", "dog's", "cats", "1234", "dogs", "sit", "ran", "on", "Mat", "nobody", "who'll"),
    *("likes", "there", "été", "naïve", "水", "🙂", "end."),
]
PROGRAM = Path(__file__).with_name("llama_cpp.py")


def corpus(rng: random.Random, n: int) -> list[str]:
    """Texts of words, of digits, of white space of all kinds, and of any characters."""
    ranges = [(32, 127), (160, 0x2FF), (0x370, 0xD7FF), (0x1F300, 0x1F700)]
    anything = [chr(rng.randrange(*rng.choice(ranges))) for _ in range(200)]
    pools = [WORDS, list("0123456789'.,!? "), ["\n", " ", "\t", "  ", "\r\n", " \n", "a", "."], anything]
    return ["".join(rng.choices(rng.choice(pools), k=rng.randrange(1, 30))) for _ in range(n)] + [
        " ".join(rng.choices(WORDS, k=12)) for _ in range(n)
    ]


def tokenizer_of(kind: str, rng: random.Random) -> Tokenizer:
    texts = [" ".join(rng.choices(WORDS, k=20)) for _ in range(200)]
    if kind in ("byte", "char"):
        return Tokenizer.train(texts, kind=kind)
    name, _, split = kind.partition(" ")
    return Tokenizer.train(texts, kind=name, vocab_size=340, **({"split": split} if split else {}))


def save(folder: Path, config: Any, tokenizer: Tokenizer, rng: random.Random) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms, biases and matrices that matter
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    save_model(model, folder, tokenizer=tokenizer)
    return model


def llama_cpp(path: Path, requests: list[dict[str, Any]], context: int = 64) -> list[Any]:
    pytest.importorskip("xllamacpp", reason="the package xllamacpp contains llama.cpp")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), str(context)], text=True, capture_output=True, timeout=200,
        input="".join(json.dumps(each) + "\n" for each in requests),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    marks = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return [json.loads(line.removeprefix("ANSWER ")) for line in marks]


@torch.no_grad()
def greedy(model: Any, ids: list[int], n: int) -> tuple[list[int], list[torch.Tensor]]:
    ids, rows = list(ids), []
    for _ in range(n):
        rows.append(model(torch.tensor([ids]))[0, -1].double().log_softmax(-1))
        ids.append(int(rows[-1].argmax()))
    return ids[-n:], rows


def check_text(model: Any, tokenizer: Tokenizer, path: Path, rng: random.Random, context: int) -> None:
    """Greedy tokens and the probabilities after a prompt are ours, up to the rounding of llama.cpp."""
    V = model.config.vocab_size
    prompts = [[rng.randrange(V) for _ in range(rng.randrange(1, context // 2))] for _ in range(16)]
    n = 12
    answers = llama_cpp(path, [{"tokens": p, "n": each} for p in prompts for each in (n, 1)], context=context)
    compared = whole = 0
    for prompt, written, first in zip(prompts, answers[::2], answers[1::2], strict=True):
        tokens, rows = greedy(model, prompt, n)
        whole += tokens[0] < tokenizer.vocab_size and "\ufffd" not in tokenizer.decode(tokens[:1])
        for _, top in first["steps"]:  # not reported within a character of several tokens
            compared += 1
            for each, logprob in top:
                assert logprob == pytest.approx(float(rows[0][each]), abs=0.02), prompt
        for i, token in enumerate(written["tokens"]):
            if token != tokens[i]:
                best = rows[i].topk(2).values
                assert float(best[0] - best[1]) < 0.02, (prompt, i)
                break
    assert compared or not whole


LLAMAS: dict[str, dict[str, Any]] = {
    "plain": {"n_heads": 4, "dim": 24, "hidden_dim": 40},
    "grouped, biases": {"n_heads": 6, "n_kv_heads": 2, "head_dim": 10, "dim": 32, "hidden_dim": 64,
                        "attention_bias": True, "feed_forward_bias": True},
    "one head, tied": {"n_heads": 1, "dim": 32, "hidden_dim": 33, "tie_embeddings": True},
    "linear rotation": {"n_heads": 2, "dim": 32, "hidden_dim": 64,
                        "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama3 rotation": {"n_heads": 2, "dim": 64, "hidden_dim": 64, "rope_theta": 500.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}},
    "bands": {"n_heads": 4, "n_kv_heads": 2, "dim": 32, "hidden_dim": 64, "attention": "band:5,full"},
    "one band": {"n_heads": 2, "dim": 32, "hidden_dim": 64, "attention": "band:7", "attention_bias": True},
}  # fmt: skip


@pytest.mark.parametrize("name", LLAMAS)
def test_llama_cpp_writes_what_a_llama_writes(name: str, tmp_path: Path, rng: random.Random) -> None:
    tokenizer = tokenizer_of("bpe", rng)
    size = tokenizer.vocab_size + rng.randrange(3)  # models may have more rows than tokens
    config = LlamaConfig(vocab_size=size, max_seq_len=64, n_layers=3, **LLAMAS[name])
    model = save(tmp_path / "model", config, tokenizer, rng)
    done = export_gguf(tmp_path / "model", tmp_path / "model.gguf", kind="f32")
    assert done.architecture == ("granite_swa" if "band" in name else "llama")
    check_text(model, tokenizer, done.path, rng, 64)


@pytest.mark.parametrize("settings", [{}, {"bias": False, "tie_embeddings": False, "hidden_dim": 50}])
def test_llama_cpp_writes_what_a_gpt2_writes(settings: Any, tmp_path: Path, rng: random.Random) -> None:
    tokenizer = tokenizer_of("bpe", rng)
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size, max_seq_len=64, dim=30, n_layers=2, n_heads=3, **settings
    )
    model = save(tmp_path / "model", config, tokenizer, rng)
    done = export_gguf(tmp_path / "model", tmp_path / "model.gguf", kind="f32")
    check_text(model, tokenizer, done.path, rng, 64)


@pytest.mark.parametrize(
    "kind", ["bpe gpt2", "bpe llama3", "byte", "char", "released llama", "released gpt2"]
)
def test_llama_cpp_gives_our_ids(kind: str, data: Path, tmp_path: Path, rng: random.Random) -> None:
    if kind == "released llama":
        tokenizer = Tokenizer.from_pretrained(data / "tokenizers" / "llama-tokenizer.model")
    elif kind == "released gpt2":
        for name, path in (("encoder.json", "gpt2-encoder.json.gz"), ("vocab.bpe", "gpt2-vocab.bpe.gz")):
            (tmp_path / name).write_bytes(gzip.decompress((data / "tokenizers" / path).read_bytes()))
        tokenizer = Tokenizer.from_pretrained(tmp_path)
    else:
        tokenizer = tokenizer_of(kind, rng)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_seq_len=64, dim=32, n_layers=1, n_heads=2, hidden_dim=32
    )
    save(tmp_path / "model", config, tokenizer, rng)
    done = export_gguf(tmp_path / "model", tmp_path / "model.gguf", kind="f32")
    texts = corpus(rng, 150)
    if kind == "char":
        known = set("".join(WORDS) + " ")
        texts = ["".join(c for c in text if c in known) or "a" for text in texts]
    answers = llama_cpp(done.path, [{"text": text, "special": True} for text in texts])
    for text, found in zip(texts, answers, strict=True):
        expected = tokenizer.encode_ids(text, specials="text")
        assert found == [tokenizer.bos_id] * tokenizer.adds_bos + expected, text


@pytest.mark.parametrize("kind", ["bpe", "byte", "char"])
@pytest.mark.parametrize("template", ["plain", "chatml", "llama2", "alpaca"])
def test_llama_cpp_writes_our_prompts(template: str, kind: str, tmp_path: Path, rng: random.Random) -> None:
    """A tokenizer without bos writes none; llama.cpp would take its token 11."""
    tokenizer = tokenizer_of(kind, rng)
    assert tokenizer.bos_id is None
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_seq_len=64, n_layers=1, dim=16, n_heads=2, hidden_dim=20
    )
    save(tmp_path / "model", config, tokenizer, rng)
    (tmp_path / "model" / "chat_template.jinja").write_text(shipped_source(template))
    done = export_gguf(tmp_path / "model", tmp_path / "model.gguf", kind="f32")
    messages = [
        ("user", "the cat"),
        ("assistant", "ran"),
        ("user", "on a Mat"),
        ("assistant", "the"),
        ("user", "a"),
    ]
    if rng.random() < 0.5:
        messages.insert(0, ("system", "likes cats"))
    given = [{"role": role, "content": content} for role, content in messages]
    (prompt,) = llama_cpp(done.path, [{"messages": given}])
    ours = template_of(Tokenizer.from_pretrained(tmp_path / "model"))
    expected = ours.render([Message(role, content) for role, content in messages], prompt=True).text
    assert prompt == expected


def test_a_sentencepiece_tokenizer_that_changes_texts_is_refused(data: Path, tmp_path: Path) -> None:
    """llama.cpp has no such steps, and would give other tokens without a word."""
    released = Tokenizer.from_pretrained(data / "tokenizers" / "llama-tokenizer.model")
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    changes = {
        "Metaspace": {"normalizer": None, "pre_tokenizer": {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}},
        "Strip, Replace": {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Strip", "strip_left": True, "strip_right": True}, space]}},
        "NFKC, Prepend, Replace": {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Prepend", "prepend": "\u2581"}, space]}},
    }  # fmt: skip
    for steps, change in changes.items():
        tokenizer = Tokenizer({**released.definition, **change})
        assert tokenizer.kind == "llama"
        with pytest.raises(CheckpointError, match=f"gives other tokens: .* and this one has {steps}; use"):
            tokenizer_fields(tokenizer, tokenizer.vocab_size)
    assert tokenizer_fields(released, released.vocab_size)["ggml.add_space_prefix"]


@pytest.mark.parametrize("family", ["llama", "llama tied", "gpt2"])
def test_transformers_computes_our_logits_and_ids(family: str, tmp_path: Path, rng: random.Random) -> None:
    tokenizer = tokenizer_of("bpe", rng)
    shape = {"vocab_size": tokenizer.vocab_size, "max_seq_len": 64, "n_layers": 2}
    if family == "gpt2":
        # transformers reads a GPT-2 of 1,024 positions only
        config: Any = GPT2Config(dim=30, n_heads=3, **{**shape, "max_seq_len": 1024})
    else:
        grouped = {"n_heads": 6, "n_kv_heads": 2, "head_dim": 6, "dim": 36, "hidden_dim": 50}
        config = LlamaConfig(tie_embeddings="tied" in family, rope_theta=700.0, **grouped, **shape)
    model = save(tmp_path / "model", config, tokenizer, rng)
    export_gguf(tmp_path / "model", tmp_path / "model.gguf", kind="f32")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    tokens = torch.randint(config.vocab_size, (3, 17))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=1e-4, atol=1e-4)
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in corpus(rng, 20):
        assert read(text, add_special_tokens=False)["input_ids"] == tokenizer.encode_ids(
            text, specials="text"
        )


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_numbers_of_fewer_bits(kind: Any, tmp_path: Path, rng: random.Random) -> None:
    """llama.cpp reads them, and the probabilities stay near; rows that q8_0 cannot divide are f16."""
    tokenizer = tokenizer_of("byte", rng)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_seq_len=64, dim=64, n_layers=2, n_heads=4, hidden_dim=70
    )
    model = build(config, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))).eval()
    save_model(model, tmp_path / "model", tokenizer=tokenizer)
    done = export_gguf(tmp_path / "model", tmp_path / "model.gguf", kind=kind)
    down_projections = 2 if kind == "q8_0" else 0
    assert done.kinds == {"f32": 5, kind: 16 - down_projections, **({"f16": 2} if down_projections else {})}
    prompt = [rng.randrange(128) for _ in range(20)]
    (answer,) = llama_cpp(done.path, [{"tokens": prompt, "n": 1}])
    _, rows = greedy(model, prompt, 1)
    for _, top in answer["steps"]:
        for token, logprob in top:
            assert logprob == pytest.approx(float(rows[0][token]), abs=0.05)


def test_what_llama_cpp_does_not_compute_is_refused_in_one_line(tmp_path: Path, rng: random.Random) -> None:
    byte = tokenizer_of("byte", rng)
    shape = {"vocab_size": byte.vocab_size, "max_seq_len": 32, "dim": 16, "n_layers": 2, "n_heads": 2}
    refused = [
        (GPTConfig(**shape), "GGUF is for gpt2 and llama, and this is a model of family 'gpt'"),
        (RNNConfig(vocab_size=byte.vocab_size, dim=8, hidden_dim=8, n_layers=1), "of family 'rnn'"),
        (LlamaConfig(activation="gelu", **shape), "no activation 'gelu' here, only silu"),
        (LlamaConfig(attention="band:4,band:5", **shape), "one width for all bands, and the layers have 4"),
        (LlamaConfig(attention="band:4+global:1", **shape), "no attention 'band:4\\+global:1'"),
        (GPT2Config(attention="band:4", **shape), "GPT-2 has no attention 'band:4', only full"),
        (LlamaConfig(rope_scaling={"rope_type": "dynamic", "factor": 2.0,
                                   "original_max_position_embeddings": 32}, **{**shape, "dim": 32}),
         "no rope scaling 'dynamic'"),
    ]  # fmt: skip
    for number, (config, says) in enumerate(refused):
        folder = tmp_path / str(number)
        save_model(build(config), folder, tokenizer=byte)
        with pytest.raises(CheckpointError, match=says):
            export_gguf(folder, tmp_path / "out.gguf")
    words = Tokenizer.train([" ".join(WORDS)], kind="word")
    lower = Tokenizer.train(["abc Été"], kind="char", lower=True)
    for tokenizer, says in ((words, "no tokenizer of kind 'word'"), (lower, "that changes texts")):
        folder = tmp_path / tokenizer.kind
        save_model(build(LlamaConfig(**{**shape, "vocab_size": 300})), folder, tokenizer=tokenizer)
        with pytest.raises(CheckpointError, match=says):
            export_gguf(folder, tmp_path / "out.gguf")
    folder = tmp_path / "large"
    model = build(LlamaConfig(**shape))
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1e5
    save_model(model, folder, tokenizer=byte)
    with pytest.raises(CheckpointError, match=r"output\.weight has numbers beyond 65,504"):
        export_gguf(folder, tmp_path / "out.gguf")
    wide = build(LlamaConfig(**{**shape, "dim": 32}))
    with torch.no_grad():
        wide.lm_head.weight[0, 31] = 8_400_000
    save_model(wide, tmp_path / "wide", tokenizer=byte)
    with pytest.raises(CheckpointError, match=r"output\.weight has numbers beyond 8,319,008, which q8_0"):
        export_gguf(tmp_path / "wide", tmp_path / "out.gguf", kind="q8_0")
    assert not [*tmp_path.glob("*.gguf*"), *tmp_path.glob(".*")]
    export_gguf(folder, tmp_path / "out.gguf", kind="bf16")
    with pytest.raises(CheckpointError, match=r"out\.gguf' exists; choose another name, or replace it"):
        export_gguf(folder, tmp_path / "out.gguf", kind="bf16")
    with pytest.raises(CheckpointError, match=r"model\.safetensors' would be read and written"):
        export_gguf(folder, folder / "model.safetensors", kind="bf16", force=True)


def test_the_command_and_a_band_as_long_as_the_context(tmp_path: Path, rng: random.Random) -> None:
    tokenizer = tokenizer_of("char", rng)
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_seq_len=32, dim=16, n_layers=1, n_heads=2,
                         attention="band:32")  # fmt: skip
    save_model(build(config), tmp_path / "mine", tokenizer=tokenizer)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "mine"), "--dtype", "f32"])
    assert done.exit_code == 0, done.output
    first, note = done.stdout.splitlines()
    assert first.startswith(f"wrote {tmp_path}/mine/mine-f32.gguf: llama, ")
    assert note == "note: llama.cpp leaves out characters that the vocabulary does not have"
    tokenizer = Tokenizer.train(["abc"], kind="byte", special_tokens=[])
    assert tokenizer.eos_id is None
    save_model(build(replace(config, vocab_size=256)), tmp_path / "endless", tokenizer=tokenizer)
    endless = export_gguf(tmp_path / "endless", tmp_path / "endless.gguf", kind="f32")
    assert any("llama.cpp takes token 11 for it" in note for note in endless.notes)
