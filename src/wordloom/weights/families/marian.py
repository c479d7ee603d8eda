"""The 2017 Transformer as transformers stores it (model_type ``marian``).

Marian's sinusoids are in halves: all sines, then all cosines.  A model whose sines and cosines alternate
equals a Marian model with the components of its model dimension permuted.  It is stored that way: along every
axis of length ``dim``, the even places come first.  No layer depends on the order, so the function stays
equal but for rounding in the norms' sums.

Position tables are not stored, as in transformers.  Biases that our model lacks are stored as zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.models.transformer import TransformerConfig
from wordloom.weights.formats import ACTIVATION_NAMES, Format, Setting, Settings, refuse_unless
from wordloom.weights.renaming import Ignored, Renaming, Row, layer_rows

_SHARED = "model.shared.weight"
_SOURCE, _TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_NORM_EPS = 1e-5  # PyTorch's default; Marian's config has no key for it

_IGNORED = (
    Ignored(r"(encoder|decoder)\.embed_positions\.weight", "sinusoidal positions"),
    Ignored(r"shared\.weight", "an embedding that neither side uses"),
)


def _attention(theirs: str, ours: str, dim: int) -> Iterator[Row]:
    for name in ("q_proj", "k_proj", "v_proj"):  # input axis is dim
        yield Row(f"{theirs}.{name}.weight", (f"{ours}.{name}.weight",), halves=1)
        yield Row(f"{theirs}.{name}.bias", (f"{ours}.{name}.bias",), zeros=(dim,))
    yield Row(f"{theirs}.out_proj.weight", (f"{ours}.o_proj.weight",), halves=0)  # output axis is dim
    yield Row(f"{theirs}.out_proj.bias", (f"{ours}.o_proj.bias",), halves=0, zeros=(dim,))


def _layer(theirs: str, ours: str, dim: int, *, reads_source: bool) -> Iterator[Row]:
    yield from _attention(f"{theirs}.self_attn", f"{ours}.attention", dim)
    yield from layer_rows(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm", halves=0)
    if reads_source:
        yield from _attention(f"{theirs}.encoder_attn", f"{ours}.cross_attention", dim)
        yield from layer_rows(f"{theirs}.encoder_attn_layer_norm", f"{ours}.cross_attention_norm", halves=0)
    yield Row(f"{theirs}.fc1.weight", (f"{ours}.feed_forward.up_proj.weight",), halves=1)
    yield Row(f"{theirs}.fc1.bias", (f"{ours}.feed_forward.up_proj.bias",))
    yield from layer_rows(f"{theirs}.fc2", f"{ours}.feed_forward.down_proj", halves=0)
    yield from layer_rows(f"{theirs}.final_layer_norm", f"{ours}.ffn_norm", halves=0)


def _rows(config: TransformerConfig) -> Iterator[Row]:
    c = config
    yield Row(_SHARED if c.share_embeddings else _TARGET, ("token_embedding.weight",), halves=1)
    if not c.share_embeddings:
        yield Row(_SOURCE, ("source_embedding.weight",), halves=1)
    for i in range(c.n_layers):
        yield from _layer(f"model.encoder.layers.{i}", f"encoder_blocks.{i}", c.dim, reads_source=False)
    for i in range(c.decoder_layers):
        yield from _layer(f"model.decoder.layers.{i}", f"decoder_blocks.{i}", c.dim, reads_source=True)
    yield Row("lm_head.weight", ("lm_head.weight",), halves=1)
    yield Row("final_logits_bias", ("lm_head.bias",), "row", zeros=(1, c.vocab_size))


def _renaming(config: TransformerConfig, names: Collection[str]) -> Renaming:
    alternating = config.positions == "sinusoidal"
    return Renaming.of(
        [row if alternating else row._replace(halves=None) for row in _rows(config)],
        names=names,
        n_layers=1,
        tied=("lm_head.weight", "token_embedding.weight") if config.tie_embeddings else None,
        copies=dict.fromkeys((_SOURCE, _TARGET), _SHARED) if config.share_embeddings else None,
        prefixes=("model.",),
        ignored=_IGNORED,
    )


_SETTINGS = Settings(
    Setting("vocab_size", "source_vocab_size", 58101, written="source_vocab"),
    Setting("decoder_vocab_size", "vocab_size"),
    Setting("max_position_embeddings", "max_seq_len", 1024),
    Setting("d_model", "dim", 1024),
    Setting("encoder_layers", "n_layers", 12),
    Setting("decoder_layers", "n_decoder_layers", 12, written="decoder_layers"),
    Setting("encoder_attention_heads", "n_heads", 16),
    Setting("decoder_attention_heads", "n_heads", read=False),
    Setting("encoder_ffn_dim", "hidden_dim", 4096, written="ffn_dim"),
    Setting("decoder_ffn_dim", "hidden_dim", written="ffn_dim", read=False),
    Setting("activation_function", "activation", "gelu"),
    Setting("scale_embedding", "scale_embeddings", False),
    Setting("share_encoder_decoder_embeddings", "share_embeddings", True),
    Setting("tie_word_embeddings", "tie_embeddings", True),
    Setting("dropout", "dropout", 0.1),
    Setting("attention_dropout", "attention_dropout", 0.0),
    Setting("activation_dropout", "activation_dropout", 0.0),
    only={"is_causal": True},
)


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    settings = _SETTINGS.read(theirs)
    source, start = settings["source_vocab_size"], theirs.get("decoder_start_token_id")
    if settings["share_embeddings"]:
        refuse_unless(theirs, decoder_vocab_size=source)
    refuse_unless(theirs, decoder_attention_heads=settings["n_heads"], decoder_ffn_dim=settings["hidden_dim"])
    if start is not None and theirs.get("pad_token_id") is not None and start != theirs["pad_token_id"]:
        raise CheckpointError(
            f"unsupported setting decoder_start_token_id = {start!r}; the decoder starts with pad_token_id "
            f"{theirs['pad_token_id']!r} here"
        )
    return settings | {
        "vocab_size": settings["vocab_size"] or source,
        "norm_eps": _NORM_EPS,
        "positions": "sinusoidal_halves",
        # transformers ties all embeddings or none
        "share_embeddings": settings["share_embeddings"] and settings["tie_embeddings"],
        "attention_bias": True,
        "output_bias": True,
    }


def _config_to(config: TransformerConfig) -> dict[str, Any] | None:
    c = config
    theirs = c.norm_place == "post" and c.positions.startswith("sinusoidal") and c.norm_eps == _NORM_EPS
    if not theirs or c.activation not in ACTIVATION_NAMES or (c.share_embeddings and not c.tie_embeddings):
        return None
    return {
        "is_encoder_decoder": True,
        **_SETTINGS.write(c),
        "decoder_start_token_id": 0,  # transformers needs a number even without a tokenizer
        "forced_eos_token_id": None,
    }


def _token_settings(ids: Mapping[str, int | None]) -> dict[str, int]:
    known = {
        "decoder_start_token_id": ids.get("pad_token_id"),
        "forced_eos_token_id": ids.get("eos_token_id"),
    }
    return {key: value for key, value in known.items() if value is not None}


FORMAT = Format(
    model_type="marian",
    architecture="MarianMTModel",
    prefixes=("model.",),
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
    token_settings=_token_settings,
    renaming=_renaming,
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
)
