"""Write stories260K, a small LLaMA trained on TinyStories, as a Hugging Face folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def content(name: str, *sources: Path) -> bytes:
    """Return the content of the file ``name`` of the folder, from llama2.c's file of weights or of pieces."""
    return _FILES[name](*(source.read_bytes() for source in sources))


def _config() -> bytes:
    return json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 172,
            "num_hidden_layers": 5,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 512,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "float32",
        },
        indent=1,
    ).encode()


def _weights(raw: bytes) -> bytes:
    """Return the weights as safetensors.

    The file has seven sizes, then the tensors, each for all layers.  Its RoPE turns pairs of neighbours, that
    of a Hugging Face folder the two halves of a head, so the rows of queries and keys change their order.
    """
    import numpy as np
    from safetensors.numpy import save

    dim, hidden, layers, heads, kv_heads, vocabulary, _ = struct.unpack("<7i", raw[:28])
    values, begin = np.frombuffer(raw, dtype="<f4", offset=28), 0
    width = dim // heads

    def take(*shape: int) -> Any:
        nonlocal begin
        size = int(np.prod(shape))
        begin += size
        return values[begin - size : begin].reshape(shape)

    def in_halves(weight: Any) -> Any:
        pairs = weight.reshape(layers, -1, width // 2, 2, dim)
        return pairs.swapaxes(2, 3).reshape(weight.shape)

    tensors = {"model.embed_tokens.weight": take(vocabulary, dim)}
    stacked = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": in_halves(take(layers, dim, dim)),
        "self_attn.k_proj": in_halves(take(layers, kv_heads * width, dim)),
        "self_attn.v_proj": take(layers, kv_heads * width, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    for key, weights in stacked.items():
        tensors |= {f"model.layers.{layer}.{key}.weight": weights[layer] for layer in range(layers)}
    tensors["model.norm.weight"] = take(dim)
    return save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()}, {"format": "pt"})


def _tokenizer(raw: bytes) -> bytes:
    """Return tokenizer.json: a BPE with byte fallback; the pieces are in the order of their merges."""
    pieces = [piece.replace(" ", "▁") for piece in _pieces(raw)]
    pieces[1:3] = ["<s>", "</s>"]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    begin, space = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"String": " "}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": n, "content": piece, **special} for n, piece in enumerate(pieces[:3])],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": space, "content": "▁"},
                ],
            },
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [
                    *(begin, {"Sequence": {"id": "A", "type_id": 0}}),
                    *(begin, {"Sequence": {"id": "B", "type_id": 0}}),
                ],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": "<unk>",
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [
                    [piece[:at], piece[at:]]
                    for piece in pieces[259:]
                    for at in range(1, len(piece))
                    if piece[:at] in vocabulary and piece[at:] in vocabulary
                ],
            },
        },
        indent=2,
        ensure_ascii=False,
    ).encode()


def _pieces(raw: bytes) -> Iterator[str]:
    """The pieces of llama2.c's tokenizer: the longest length, then score, length and bytes of each piece."""
    at = 4
    while at < len(raw):
        _, length = struct.unpack("<fi", raw[at : at + 8])
        yield raw[at + 8 : at + 8 + length].decode()
        at += 8 + length


_FILES: dict[str, Callable[..., bytes]] = {
    "config.json": _config,
    "generation_config.json": lambda: b'{"bos_token_id": 1, "eos_token_id": 2}',
    "model.safetensors": _weights,
    "tokenizer.json": _tokenizer,
    "tokenizer_config.json": lambda: json.dumps(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
        }
    ).encode(),
}
