"""Tiny random models in folders, and a client of a server in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file
from tests.serve.servers import running

from wordloom.models import GPTConfig, LlamaConfig, RNNConfig, build
from wordloom.run.tasks.conversing import with_template
from wordloom.serve.limits import Limits
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXTS = ["the weather is fine and the sea is calm, 123 boats <b>sail</b> é"] * 9
CONFIGS: dict[str, Any] = {
    "llama": lambda V: LlamaConfig(
        vocab_size=V, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=512
    ),
    "gpt": lambda V: GPTConfig(vocab_size=V, dim=24, n_layers=1, n_heads=2, max_seq_len=128),
    "rnn": lambda V: RNNConfig(vocab_size=V, dim=16, n_layers=2),
}  # fmt: skip


def save_tiny(
    folder: Path, family: str = "llama", *, template: str | None = "plain", **settings: Any
) -> Path:
    """Save a random model with a tokenizer, perhaps with a chat template, and return its folder.

    ``settings`` replace those of the family's config.
    """
    tokenizer = Tokenizer.train(TEXTS, kind="bpe", vocab_size=300, special_tokens=["<|endoftext|>"])
    if template is not None:
        tokenizer, _ = with_template(tokenizer, template)
    config = replace(CONFIGS[family](tokenizer.vocab_size), **settings)
    model = build(config, generator=torch.Generator().manual_seed(1))
    save_model(model, folder, tokenizer=tokenizer)
    return folder


def _readable(piece: bytes) -> bool:
    return piece.isascii() and piece.decode().isprintable()


def save_talker(folder: Path, *, template: str | None = "plain", **settings: Any) -> Path:
    """Save a random LLaMA that writes readable tokens alone, without end, and return its folder."""
    save_tiny(folder, template=template, tie_embeddings=False, **settings)
    tokenizer, weights = Tokenizer.from_pretrained(folder), load_file(folder / "model.safetensors")
    pieces = tokenizer.token_bytes or []
    silent = [
        index
        for index, piece in enumerate(pieces)
        if index in tokenizer.special_ids or piece is None or not _readable(piece)
    ]
    # the first component is the same in all vectors, and the head reads it as a bias
    head = weights["lm_head.weight"] * 20
    weights["model.embed_tokens.weight"][:, 0] = 10
    head[:, 0] = 0
    head[silent, 0] = -20
    save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    return folder


@contextmanager
def serving(folders: Mapping[str, Path], **limits: Any) -> Iterator[httpx.Client]:
    """Give a client of a server of the models in ``folders``, by name."""
    with (
        running(dict(folders), Limits(**limits)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client
