"""BERT, RoBERTa and Longformer as transformers stores them, each under its name as the model_type.

A Longformer is a RoBERTa with a band, global tokens, and projections of their own for these.

The names of the stored tensors show which pre-training heads a folder has, and whether it has a pooler;
config.json names only one of several possible architectures.  Releases that came from TensorFlow call a
norm's weight and bias gamma and beta.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from wordloom.errors import CheckpointError
from wordloom.models.bert import BertConfig
from wordloom.models.roberta import RobertaConfig
from wordloom.nn.attention.kinds import Band, Global
from wordloom.weights.families.task_heads import heads_beside
from wordloom.weights.formats import ACTIVATION_NAMES, Format, Setting, Settings, refuse_unless
from wordloom.weights.renaming import Ignored, Renaming, Row, layer_rows

_IGNORED = (
    Ignored(r"embeddings\.(position_ids|token_type_ids)", "positions and segments by number"),
    Ignored(r"pooler\.dense\.(weight|bias)", "a pooler that the head does not read"),
)
_SPELLINGS = {".gamma": ".weight", ".beta": ".bias"}


def attention_rows(theirs: str, ours: str) -> Iterator[Row]:
    """Yield the rows of an attention layer and its norm."""
    for name in ("query", "key", "value"):
        yield from layer_rows(f"{theirs}.self.{name}", f"{ours}.{name[0]}_proj")
    yield from layer_rows(f"{theirs}.output.dense", f"{ours}.o_proj")
    yield from layer_rows(f"{theirs}.output.LayerNorm", f"{ours}_norm")


def block_rows(theirs: str, ours: str) -> Iterator[Row]:
    """Yield the rows of a block."""
    yield from attention_rows(f"{theirs}.attention", f"{ours}.attention")
    yield from layer_rows(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.up_proj")
    yield from layer_rows(f"{theirs}.output.dense", f"{ours}.feed_forward.down_proj")
    yield from layer_rows(f"{theirs}.output.LayerNorm", f"{ours}.ffn_norm")


def _body(prefix: str) -> Iterator[Row]:
    for theirs, ours in (("word", "token"), ("position", "position"), ("token_type", "segment")):
        yield Row(f"{prefix}embeddings.{theirs}_embeddings.weight", (f"{ours}_embedding.weight",))
    yield from layer_rows(f"{prefix}embeddings.LayerNorm", "embedding_norm")
    yield from block_rows(f"{prefix}encoder.layer.{{i}}", "blocks.{i}")
    yield from layer_rows(f"{prefix}pooler.dense", "pooler")


_BERT = (
    *_body("bert."),
    *layer_rows("cls.predictions.transform.dense", "mlm_transform"),
    *layer_rows("cls.predictions.transform.LayerNorm", "mlm_norm"),
    Row("cls.predictions.bias", ("lm_head.bias",)),
    Row("cls.predictions.decoder.weight", ("lm_head.weight",)),
    *layer_rows("cls.seq_relationship", "next_sentence"),
)
_ROBERTA_HEAD = (
    *layer_rows("lm_head.dense", "mlm_transform"),
    *layer_rows("lm_head.layer_norm", "mlm_norm"),
    Row("lm_head.bias", ("lm_head.bias",)),
    Row("lm_head.decoder.weight", ("lm_head.weight",)),
)
_ROBERTA = (*_body("roberta."), *_ROBERTA_HEAD)
_LONGFORMER = (
    *_body("longformer."),
    *(
        row
        for name in ("query", "key", "value")
        for row in layer_rows(
            f"longformer.encoder.layer.{{i}}.attention.self.{name}_global",
            f"blocks.{{i}}.attention.{name[0]}_global_proj",
        )
    ),
    *_ROBERTA_HEAD,
)


def _renaming(
    table: tuple[Row, ...],
    prefix: str,
    head: str,
    ignored: tuple[Ignored, ...],
    config: BertConfig,
    names: Collection[str],
) -> Renaming:
    """Return the table of a model; ``head`` is the prefix of the output layer.

    Transformers stores its bias under two names.  Without tied embeddings these are two tensors, of which
    ``decoder.bias`` is used.
    """
    bias, decoder_bias = f"{head}bias", f"{head}decoder.bias"
    tied = ("lm_head.weight", "token_embedding.weight") if config.tie_embeddings else None
    return Renaming.of(
        [row if tied or row.theirs != bias else row._replace(theirs=decoder_bias) for row in table],
        names=names,
        n_layers=config.n_layers,
        prefixes=(prefix,),
        tied=tied if config.masked_lm_head else None,
        copies={decoder_bias: bias} if tied else None,
        ignored=ignored if tied else (*ignored, Ignored(re.escape(bias), "an unused bias")),
        spellings=_SPELLINGS,
    )


def _refine(table: tuple[Row, ...], config: BertConfig, stored: Collection[str]) -> BertConfig:
    """Return ``config`` with the heads and the pooler that are among the ``stored`` names."""

    def holds(ours: str) -> bool:
        theirs = next(row.theirs for row in table if row.ours == (f"{ours}.weight",))
        return theirs in stored or theirs.partition(".")[2] in stored  # a body is stored without its prefix

    pooler, masked = holds("pooler"), holds("mlm_transform")
    next_sentence = type(config) is BertConfig and holds("next_sentence") and pooler
    return replace(config, pooler=pooler, masked_lm_head=masked, next_sentence_head=next_sentence)


_SETTINGS = Settings(
    Setting("vocab_size", "vocab_size"),
    Setting("max_position_embeddings", "max_seq_len", 512),
    Setting("type_vocab_size", "type_vocab_size", 2),
    Setting("hidden_size", "dim", 768),
    Setting("num_hidden_layers", "n_layers", 12),
    Setting("num_attention_heads", "n_heads", 12),
    Setting("intermediate_size", "hidden_dim", 3072, written="ffn_dim"),
    Setting("hidden_act", "activation", "gelu"),
    Setting("layer_norm_eps", "norm_eps", 1e-12),
    Setting("hidden_dropout_prob", "dropout", 0.1),
    Setting("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Setting("tie_word_embeddings", "tie_embeddings", True),
    only={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
)


def _config_from(theirs: Mapping[str, Any], family: type[BertConfig] = BertConfig) -> dict[str, Any]:
    architectures = theirs.get("architectures") or ["BertModel"]
    kind = re.sub("^(Roberta|Longformer|Bert)", "", str(architectures[0]))
    settings = _SETTINGS.read({"vocab_size": family.vocab_size, **theirs})
    rows = settings["max_seq_len"]
    return settings | {
        "max_seq_len": rows - family.position_offset if isinstance(rows, int) else rows,
        "pooler": kind in ("Model", "ForPreTraining", "ForNextSentencePrediction"),
        "masked_lm_head": kind in ("ForPreTraining", "ForMaskedLM"),
        "next_sentence_head": kind in ("ForPreTraining", "ForNextSentencePrediction")
        and family is BertConfig,
    }


def _roberta_from(theirs: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unless(theirs, pad_token_id=1)  # transformers counts positions from pad_token_id + 1
    settings = _config_from(theirs, RobertaConfig)
    if theirs.get("model_type") != "longformer":
        return settings
    widths = theirs.get("attention_window", 512)
    widths = widths if isinstance(widths, list) else [widths] * settings["n_layers"]
    if len(widths) != settings["n_layers"] or any(type(w) is not int or w < 2 or w % 2 for w in widths):
        raise CheckpointError(f"attention_window is an even width for each layer, not {widths!r}")
    # The config does not name the global tokens: transformers takes them at each call.  Without them its
    # sequence classification takes the first token, and its other heads that are read here take none.
    patterns = [f"band:{width // 2}+global:1" for width in widths]
    attention = patterns[0] if len(set(patterns)) == 1 else ",".join(patterns)
    return settings | {"attention": attention, "global_projections": True}


def _longformer_windows(config: BertConfig) -> list[int] | None:
    """Return the width of each layer's window as transformers counts it; None for other attention.

    transformers pads texts to a multiple of the widest window, so the others must divide it.
    """
    widths, tokens = [], set()
    for pattern in config.patterns:
        kinds = {type(kind): kind for kind in pattern.kinds}
        band, first = kinds.get(Band), kinds.get(Global)
        if len(pattern.kinds) != 2 or not isinstance(band, Band) or not isinstance(first, Global):
            return None
        widths.append(2 * band.width)
        tokens.add(first.tokens)
    return widths if len(tokens) == 1 and not any(max(widths) % width for width in widths) else None


def _config_to(config: BertConfig) -> dict[str, Any] | None:
    c = config
    default = replace(c, mlm_activation=None).mlm_head_activation  # transformers has no setting for it
    if c.activation not in ACTIVATION_NAMES or (c.masked_lm_head and c.mlm_head_activation != default):
        return None
    roberta = isinstance(c, RobertaConfig)
    theirs: dict[str, Any] = {
        **_SETTINGS.write(c),
        "max_position_embeddings": c.position_offset + c.max_seq_len,
    }
    if all(pattern.is_full for pattern in c.patterns):
        return {"architectures": [("Roberta" if roberta else "Bert") + _architecture(c)], **theirs}
    windows = _longformer_windows(c) if roberta and c.global_projections else None
    if windows is None:
        return None
    named = {"model_type": "longformer", "architectures": ["Longformer" + _architecture(c)]}
    return {**named, **theirs, "attention_window": windows}


def _architecture(config: BertConfig) -> str:
    if config.masked_lm_head:
        return "ForPreTraining" if config.next_sentence_head else "ForMaskedLM"
    return "ForNextSentencePrediction" if config.next_sentence_head else "Model"


def _roberta_ids(ids: Mapping[str, int | None]) -> dict[str, int]:
    if ids.get("pad_token_id") not in (None, 1):
        raise CheckpointError(
            "a RoBERTa pads with token 1, from which transformers counts its positions, and the tokenizer "
            f"with {ids['pad_token_id']}; give it <s>, <pad>, </s>, <unk>, <mask> as its first special tokens"
        )
    return {"pad_token_id": 1}


def _longformer_renaming(
    ignored: tuple[Ignored, ...], config: BertConfig, names: Collection[str]
) -> Renaming:
    long = config.global_projections
    table, prefix = (_LONGFORMER, "longformer.") if long else (_ROBERTA, "roberta.")
    return _renaming(table, prefix, "lm_head.", ignored, config, names)


def _roberta_refine(config: BertConfig, stored: Collection[str]) -> BertConfig:
    return _refine(_LONGFORMER if config.global_projections else _ROBERTA, config, stored)


def _format(model_type: str, table: tuple[Row, ...], head: str, **settings: Any) -> Format:
    ignored = (*_IGNORED, *heads_beside(model_type))
    return Format(
        model_type=model_type,
        architecture="",  # config_to names it
        prefixes=(f"{model_type}.",),
        table=table,
        ignored=ignored,
        config_to=_config_to,
        writes_patterns=True,
        generates=False,
        **{
            "renaming": partial(_renaming, table, f"{model_type}.", head, ignored),
            "refine": partial(_refine, table),
            **settings,
        },
    )


FORMAT = _format("bert", _BERT, "cls.predictions.", config_from=_config_from)
ROBERTA = _format(
    "roberta",
    _ROBERTA,
    "lm_head.",
    config_from=_roberta_from,
    token_settings=_roberta_ids,
    other_types=("longformer",),
    renaming=partial(_longformer_renaming, (*_IGNORED, *heads_beside("roberta"))),
    refine=_roberta_refine,
)
