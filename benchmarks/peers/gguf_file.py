"""Write a LLaMA as a GGUF file, the format of llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from wordloom.nn import halves_to_pairs
from wordloom.text.formats.sentencepiece import parse

NAMES = {
    "attention_norm": "attn_norm", "attention.q_proj": "attn_q", "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v", "attention.o_proj": "attn_output", "ffn_norm": "ffn_norm",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(model: Any, path: Path, kind: str, *, vocabulary: Path | None = None) -> None:
    """Write ``model`` into ``path``, with matrices of the ``kind`` "F32", "BF16" or "Q8_0", norms in float32.

    ``vocabulary`` is a SentencePiece model; without one, the file is for token ids only.
    """
    sys.path.insert(0, str(Path(__file__).parent / ".llama_cpp"))
    import gguf

    c, of_kind = model.config, gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c.max_seq_len)
    writer.add_embedding_length(c.dim)
    writer.add_block_count(c.n_layers)
    writer.add_feed_forward_length(c.ffn_dim)
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_width)
    writer.add_value_length(c.head_width)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_rope_dimension_count(c.head_width)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_vocab_size(c.vocab_size)
    if vocabulary is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        pieces = parse(vocabulary.read_bytes()).pieces
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([piece.text for piece in pieces])
        writer.add_token_scores([piece.score for piece in pieces])
        writer.add_token_types([piece.type for piece in pieces])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    def add(name: str, weight: Any) -> None:
        values = weight.detach().float().numpy()
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, of_kind), raw_dtype=of_kind)

    add("token_embd.weight", model.token_embedding.weight)
    add("output_norm.weight", model.final_norm.weight)
    if not c.tie_embeddings:
        add("output.weight", model.lm_head.weight)
    for i, block in enumerate(model.blocks):
        for ours, theirs in NAMES.items():
            weight = block.get_submodule(ours).weight
            if theirs in ("attn_q", "attn_k"):  # llama.cpp rotates neighbouring elements
                weight = halves_to_pairs(weight, head_dim=c.head_width)
            add(f"blk.{i}.{theirs}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
