"""An encoder and a decoder that begin as a BERT (Rothe, Narayan & Severyn 2020, arXiv:1907.12461)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

from wordloom.errors import CheckpointError, ConfigError, did_you_mean
from wordloom.models import (
    BertConfig,
    BertGenerationConfig,
    RobertaConfig,
    TaskModel,
    body_config,
    encodes,
    family_of,
)
from wordloom.weights.configs import load_config
from wordloom.weights.folders import load_model
from wordloom.weights.tensors import read_json

__all__ = ["BertStart", "CrossAttention", "config_from_bert", "start_from_bert"]

CrossAttention: TypeAlias = Literal["fresh", "copied"]

_SAME = ("dim", "n_heads", "ffn_dim", "activation", "norm_eps")  # of both sides; the other sizes are a side's
_FRESH = ("cross_attention", "cross_attention_norm")


class BertStart(NamedTuple):
    """What became of the weights of the BERT that one ``side`` began with, by the names of its modules.

    ``folded`` and ``copied`` name what went into other modules than its own.
    """

    side: str
    folder: Path
    taken: tuple[str, ...]
    folded: tuple[str, ...]
    copied: tuple[str, ...]
    fresh: tuple[str, ...]
    dropped: tuple[str, ...]

    def lines(self) -> list[str]:
        """What a person is told."""
        told = (("folded", self.folded), ("copied", self.copied), ("fresh", self.fresh))
        parts = [(what, names) for what, names in (*told, ("left out", self.dropped)) if names]
        first = f"start       {self.side} from {self.folder}: {', '.join(self.taken)}"
        return [first, *(f"start       {self.side}, {what}: {', '.join(names)}" for what, names in parts)]


def config_from_bert(encoder: str | Path, decoder: str | Path | None = None) -> BertGenerationConfig:
    """The settings of a model whose sides begin with the BERTs of these folders; one for both by default.

    Raises CheckpointError for a folder that holds no encoder, and where the two do not go together.
    """
    read = _bert_config(Path(encoder))
    written = read if decoder is None else _bert_config(Path(decoder))
    for name in _SAME:
        _require(name, getattr(read, name), getattr(written, name), f"{encoder}", f"{decoder}")
    padding = {_padding_idx(Path(folder)) for folder in (encoder, decoder or encoder)}
    return BertGenerationConfig(
        vocab_size=written.vocab_size,
        source_vocab_size=None if read.vocab_size == written.vocab_size else read.vocab_size,
        max_seq_len=min(read.max_seq_len, written.max_seq_len),
        dim=read.dim,
        n_layers=read.n_layers,
        n_decoder_layers=None if read.n_layers == written.n_layers else written.n_layers,
        n_heads=read.n_heads,
        hidden_dim=read.hidden_dim,
        activation=read.activation,
        norm_eps=read.norm_eps,
        padding_idx=padding.pop() if len(padding) == 1 else None,  # it is one of both sides
        dropout=read.dropout,
        attention_dropout=read.attention_dropout,
    )


@torch.no_grad()
def start_from_bert(
    model: Any,
    encoder: str | Path,
    decoder: str | Path | None = None,
    *,
    cross_attention: CrossAttention = "fresh",
) -> list[BertStart]:
    """Copy the weights of BERT or RoBERTa folders into a :class:`~wordloom.models.BertGeneration`.

    Every token of the model is of segment 0, so the vector of segment 0 is added to the positions.  The bias
    of the output is that of hidden tokens where the folder has one, else zero; what lies between the last
    block and the output there (``mlm_transform``, ``mlm_norm``) has no place here.

    Args:
        model: the model, initialised.
        encoder: the folder that its encoder begins with.
        decoder: the folder that its decoder begins with; None: the same.
        cross_attention: ``"fresh"`` leaves attention to the source as it is initialised, as the paper does;
            ``"copied"`` begins it, norm included, as the attention before it.

    Raises CheckpointError for a folder that holds no encoder, other settings of what both have, and sizes
    that do not fit.
    """
    if cross_attention not in get_args(CrossAttention):
        hint = did_you_mean(str(cross_attention), get_args(CrossAttention))
        raise ConfigError(f"cross_attention is {cross_attention!r}; {hint}")
    read = _Side(model, "encoder", Path(encoder))
    written = _Side(model, "decoder", Path(encoder if decoder is None else decoder))
    return [read.start(), written.start(cross_attention)]


class _Side:
    """One side of ``model`` and the BERT in ``folder`` that it begins with."""

    def __init__(self, model: Any, side: str, folder: Path) -> None:
        self.model, self.side, self.folder = model, side, folder
        self.prefix = "source_" if side == "encoder" else ""
        self.tokens: nn.Embedding = model.source_embedding if self.prefix else model.token_embedding
        self.blocks = model.encoder_blocks if side == "encoder" else model.decoder_blocks
        ours, theirs = model.config, _bert_config(folder)
        for name in _SAME:
            _require(name, getattr(theirs, name), getattr(ours, name), str(folder), f"the model's {side}")
        sizes = (
            ("vocab_size", theirs.vocab_size, self.tokens.num_embeddings),
            ("n_layers", theirs.n_layers, len(self.blocks)),
        )
        for name, given, wanted in sizes:
            _require(name, given, wanted, str(folder), f"the model's {side}")
        if ours.max_seq_len > theirs.max_seq_len:
            raise CheckpointError(
                f"{folder} has {theirs.max_seq_len} positions and the model {ours.max_seq_len}; lower it"
            )

    def start(self, cross_attention: CrossAttention | None = None) -> BertStart:
        """Copy; ``cross_attention`` None: there is none."""
        bert: Any = load_model(self.folder, dtype=torch.float32)
        head = ["classifier"] if isinstance(bert, TaskModel) else []
        bert = bert.body if head else bert
        c, rows = bert.config, self.model.config.max_seq_len
        self.tokens.weight.copy_(bert.token_embedding.weight)  # [V, D]
        positions = bert.position_embedding.weight[c.position_offset :][:rows]  # [T, D]
        ours = getattr(self.model, f"{self.prefix}position_embedding")
        ours.weight.copy_(positions + bert.segment_embedding.weight[0])
        getattr(self.model, f"{self.prefix}embedding_norm").load_state_dict(bert.embedding_norm.state_dict())
        for block, given in zip(self.blocks, bert.blocks, strict=True):
            state: dict[str, Tensor] = given.state_dict()
            if cross_attention == "copied":
                state |= {
                    f"cross_{key}": value for key, value in state.items() if key.startswith("attention")
                }
            block.load_state_dict(state, strict=cross_attention != "fresh")

        taken = ["token_embedding", "position_embedding", "embedding_norm", f"{c.n_layers} blocks"]
        dropped = [
            name for name in ("pooler", "mlm_transform", "mlm_norm", "next_sentence") if _has(bert, name)
        ] + head
        if c.type_vocab_size > 1:
            dropped.insert(0, "segment_embedding from row 1 on")
        if c.position_offset + rows < len(bert.position_embedding.weight):
            dropped.insert(0, f"position_embedding from position {rows} on")
        copied, fresh = [], []
        if cross_attention is None:
            dropped += ["lm_head.bias"] if c.masked_lm_head else []
        else:
            if c.masked_lm_head:
                self.model.lm_head.bias.copy_(bert.lm_head.bias)
                taken.append("lm_head.bias")
            else:
                self.model.lm_head.bias.zero_()
                fresh.append("lm_head.bias (zero)")
            if cross_attention == "copied":
                copied.append("attention and attention_norm into cross_attention and cross_attention_norm")
            else:
                fresh += _FRESH
        folded = ("segment_embedding's row 0 into position_embedding",)
        parts = (tuple(taken), folded, tuple(copied), tuple(fresh), tuple(dropped))
        return BertStart(self.side, self.folder, *parts)


def _has(model: nn.Module, name: str) -> bool:
    return getattr(model, name, None) is not None


def _bert_config(folder: Path) -> BertConfig:
    config = body_config(load_config(folder))
    if not encodes(config):
        raise CheckpointError(
            f"{folder} holds a {family_of(config)}; only a bert or roberta can begin either side"
        )
    assert isinstance(config, BertConfig)
    return config


def _padding_idx(folder: Path) -> int | None:
    usual = 1 if isinstance(_bert_config(folder), RobertaConfig) else 0  # where nothing is said
    found = read_json(folder / "config.json").get("pad_token_id", usual)
    return found if isinstance(found, int) else None


def _require(name: str, given: object, wanted: object, folder: str, other: str) -> None:
    if given != wanted:
        raise CheckpointError(f"{folder} has {name} {given!r}, {other} has {wanted!r}")
