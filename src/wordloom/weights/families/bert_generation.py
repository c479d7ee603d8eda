"""BertGeneration as transformers stores it: model_type ``encoder-decoder`` with two sides of model_type
``bert-generation``.

Our config has one value where transformers has one for each side, so both sides must agree.  A side's
``pad_token_id`` is the embedding's ``padding_idx``; bos and eos belong to the whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.models.bert_generation import BertGenerationConfig
from wordloom.weights.families.bert import attention_rows, block_rows
from wordloom.weights.formats import ACTIVATION_NAMES, Format, Setting, Settings, refuse_unless
from wordloom.weights.renaming import Ignored, Renaming, Row, layer_rows

_SIDE = "bert-generation"
_HEAD = "decoder.lm_head"

_IGNORED = (Ignored(r"(encoder|decoder\.bert)\.embeddings\.position_ids", "positions by number"),)

_SETTINGS = Settings(  # of each side
    Setting("max_position_embeddings", "max_seq_len", 512),
    Setting("hidden_size", "dim", 1024),
    Setting("num_attention_heads", "n_heads", 16),
    Setting("intermediate_size", "hidden_dim", 4096, written="ffn_dim"),
    Setting("hidden_act", "activation", "gelu"),
    Setting("layer_norm_eps", "norm_eps", 1e-12),
    Setting("hidden_dropout_prob", "dropout", 0.1),
    Setting("attention_probs_dropout_prob", "attention_dropout", 0.1),
)
_PADDING = Setting("pad_token_id", "padding_idx", 0)


def _embeddings(theirs: str, ours: str, tokens: str) -> Iterator[Row]:
    yield Row(f"{theirs}.embeddings.word_embeddings.weight", (f"{tokens}.weight",))
    yield Row(f"{theirs}.embeddings.position_embeddings.weight", (f"{ours}position_embedding.weight",))
    yield from layer_rows(f"{theirs}.embeddings.LayerNorm", f"{ours}embedding_norm")


def _rows(config: BertGenerationConfig) -> Iterator[Row]:
    yield from _embeddings("encoder", "source_", "source_embedding")
    for i in range(config.n_layers):
        yield from block_rows(f"encoder.encoder.layer.{i}", f"encoder_blocks.{i}")
    yield from _embeddings("decoder.bert", "", "token_embedding")
    for i in range(config.decoder_layers):
        theirs, ours = f"decoder.bert.encoder.layer.{i}", f"decoder_blocks.{i}"
        yield from block_rows(theirs, ours)
        yield from attention_rows(f"{theirs}.crossattention", f"{ours}.cross_attention")
    yield Row(f"{_HEAD}.bias", ("lm_head.bias",))
    yield Row(f"{_HEAD}.decoder.weight", ("lm_head.weight",))


def _renaming(config: BertGenerationConfig, names: Collection[str]) -> Renaming:
    return Renaming.of(
        list(_rows(config)),
        names=names,
        n_layers=1,
        tied=("lm_head.weight", "token_embedding.weight"),
        copies={f"{_HEAD}.decoder.bias": f"{_HEAD}.bias"},
        ignored=_IGNORED,
    )


def _config_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    sides = {}
    for name in ("encoder", "decoder"):
        side = theirs.get(name)
        if not isinstance(side, Mapping) or side.get("model_type") != _SIDE:
            kind = side.get("model_type") if isinstance(side, Mapping) else side
            raise CheckpointError(f"its {name} is of model_type {kind!r}; only {_SIDE!r} is computed here")
        sides[name] = side
    encoder, decoder = sides["encoder"], sides["decoder"]
    refuse_unless(theirs, tie_encoder_decoder=False)
    refuse_unless(encoder, is_decoder=False, add_cross_attention=False)
    refuse_unless(decoder, tie_word_embeddings=True, is_causal=True)
    for key in ("is_decoder", "add_cross_attention"):
        if decoder.get(key) is not True:
            raise CheckpointError(
                f"unsupported setting {key} = {decoder.get(key)!r} of the decoder; only True"
            )
    for key, _, default, *_ in (*_SETTINGS.rows, _PADDING):
        values = encoder.get(key, default), decoder.get(key, default)
        if values[0] != values[1]:
            raise CheckpointError(
                f"its encoder has {key} {values[0]!r} and its decoder {values[1]!r}; only equal values are "
                "supported"
            )
    return {
        **Settings(*_SETTINGS.rows, _PADDING).read(decoder),
        "vocab_size": decoder.get("vocab_size", 50358),
        "source_vocab_size": encoder.get("vocab_size", 50358),
        "n_layers": encoder.get("num_hidden_layers", 24),
        "n_decoder_layers": decoder.get("num_hidden_layers", 24),
    }


def _config_to(config: BertGenerationConfig) -> dict[str, Any] | None:
    c = config
    if c.activation not in ACTIVATION_NAMES:
        return None
    side = {
        "model_type": _SIDE,
        **_SETTINGS.write(c),
        "bos_token_id": None,  # otherwise transformers takes the released models'
        "eos_token_id": None,
        "pad_token_id": c.padding_idx,
    }
    return {
        "is_encoder_decoder": True,
        "encoder": {
            "architectures": ["BertGenerationEncoder"],
            **side,
            "vocab_size": c.source_vocab,
            "num_hidden_layers": c.n_layers,
        },
        "decoder": {
            "architectures": ["BertGenerationDecoder"],
            **side,
            "vocab_size": c.vocab_size,
            "num_hidden_layers": c.decoder_layers,
            "is_decoder": True,
            "add_cross_attention": True,
            "tie_word_embeddings": True,
        },
    }


def _token_settings(ids: Mapping[str, int | None]) -> dict[str, int]:
    """The prefix starts with bos (BERT's [CLS]), or with padding if the tokenizer has no bos."""
    start = ids.get("pad_token_id") if ids.get("bos_token_id") is None else ids.get("bos_token_id")
    return {} if start is None else {"decoder_start_token_id": start}


FORMAT = Format(
    model_type="encoder-decoder",
    architecture="EncoderDecoderModel",
    ignored=_IGNORED,
    config_from=_config_from,
    config_to=_config_to,
    starts_with_bos=True,
    token_settings=_token_settings,
    renaming=_renaming,
)
