"""Start a model from a checkpoint whose heads or vocabulary may differ, or from checkpoints of BERT.

The encoder and the decoder of a BertGeneration start from BERT as in Rothe et al. 2020, arXiv:1907.12461.
"""

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
    TaskConfig,
    TaskModel,
    body_config,
    encodes,
    family_of,
)
from wordloom.weights.configs import load_config, require_equal_settings
from wordloom.weights.loading import load_model
from wordloom.weights.tensors import read_json

# Settings that may differ: optional parts, and sizes that show in the shapes.
_MAY_DIFFER = (
    "pooler", "masked_lm_head", "next_sentence_head",
    "vocab_size", "max_seq_len", "type_vocab_size", "hidden_dim", "empty_id", "attention",
)  # fmt: skip


class PretrainedStart(NamedTuple):
    """The modules that were not copied.

    Attributes:
        fresh: modules of the model, or rows of them, that the checkpoint lacks.
        dropped: modules of the checkpoint that the model lacks.
    """

    fresh: tuple[str, ...]
    dropped: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report, a line for each kind of module."""
        kinds = (("fresh", self.fresh), ("left out", self.dropped))
        return [f"start       {kind}: {', '.join(names)}" for kind, names in kinds if names]


@torch.no_grad()
def start_from(model: Any, folder: str | Path, *, extra_tokens: bool = False) -> PretrainedStart:
    """Copy the weights of ``folder`` into ``model``, of the same family.

    The heads may differ.  A model with a task head takes only the body of a checkpoint without that head.
    ``extra_tokens`` allows the model's vocabulary to be longer; its further rows stay as they are.

    Raises CheckpointError for another family, for other settings of the shared parts, and for another shape.
    """
    folder = Path(folder)
    stored: Any = load_model(folder, dtype=torch.float32)
    ours, theirs = model.config, stored.config
    has_head, stored_head = isinstance(ours, TaskConfig), isinstance(theirs, TaskConfig)
    if has_head and stored_head and (ours.task, ours.labels) == (theirs.task, theirs.labels):
        return _copy(model, stored, folder, extra_tokens)
    body, stored_body = model.body if has_head else model, stored.body if stored_head else stored
    start = _copy(body, stored_body, folder, extra_tokens)
    head = ("classifier",)
    return PretrainedStart(start.fresh + head * has_head, start.dropped + head * stored_head)


def _copy(model: Any, stored: Any, folder: Path, extra_tokens: bool) -> PretrainedStart:
    """Copy the weights of ``stored``, which was read from ``folder``, into ``model``."""
    ours, theirs = body_config(model.config), body_config(stored.config)
    heads = type(ours) is type(theirs) and all(getattr(c, "masked_lm_head", False) for c in (ours, theirs))
    may_differ = _MAY_DIFFER if heads else (*_MAY_DIFFER, "mlm_activation")
    require_equal_settings(theirs, ours, folder, may_differ=may_differ)
    state, stored_state = model.state_dict(), stored.state_dict()
    extra: dict[int, str] = {}  # by address, since lm_head may share the embedding's
    for name in sorted(state.keys() & stored_state.keys(), reverse=True):  # token_embedding before lm_head
        target, source = state[name], stored_state[name]
        rows = source.shape[0] if source.dim() else 0
        if extra_tokens and rows == theirs.vocab_size < ours.vocab_size == target.shape[0]:
            extra.setdefault(target.data_ptr(), f"{name.rpartition('.')[0]}[{rows}:{ours.vocab_size}]")
            target[:rows] = source
            continue
        if target.shape != source.shape:
            raise CheckpointError(
                f"{folder} has {name} of {list(source.shape)}, the model of {list(target.shape)}"
            )
        target.copy_(source)
    if getattr(ours, "empty_id", None) is not None:
        model.tie_weights()  # sets the row of empty_id to zero, which the checkpoint may have trained
    fresh = _modules(state.keys() - stored_state.keys())
    return PretrainedStart((*extra.values(), *fresh), _modules(stored_state.keys() - state.keys()))


def _modules(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[0] for name in names}))


CrossAttention: TypeAlias = Literal["fresh", "copied"]

_SHARED = ("dim", "n_heads", "ffn_dim", "activation", "norm_eps")  # settings that both sides share
_FRESH = ("cross_attention", "cross_attention_norm")


class BertStart(NamedTuple):
    """The modules of the BERT that one ``side`` was started from, by what became of their weights.

    Weights went into the module of their own name (``taken``), into another module (``folded`` and
    ``copied``) or nowhere (``dropped``).  ``fresh`` modules of the side keep their initialisation.
    """

    side: str
    folder: Path
    taken: tuple[str, ...]
    folded: tuple[str, ...]
    copied: tuple[str, ...]
    fresh: tuple[str, ...]
    dropped: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report, a line for each kind of module."""
        kinds = {
            "folded": self.folded, "copied": self.copied, "fresh": self.fresh, "left out": self.dropped
        }  # fmt: skip
        first = f"start       {self.side} from {self.folder}: {', '.join(self.taken)}"
        others = [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
        return [first, *(f"start       {self.side}, {line}" for line in others)]


def config_from_bert(encoder: str | Path, decoder: str | Path | None = None) -> BertGenerationConfig:
    """Return the config of a model whose sides start from the BERTs of these folders.

    ``decoder`` None starts both sides from ``encoder``.

    Raises CheckpointError for a folder without an encoder of full attention, and for two that differ in a
    shared setting.
    """
    first = _bert_config(Path(encoder))
    second = first if decoder is None else _bert_config(Path(decoder))
    for name in _SHARED:
        _require(name, getattr(first, name), getattr(second, name), f"{encoder}", f"{decoder}")
    padding = {_padding_idx(Path(folder)) for folder in (encoder, decoder or encoder)}
    return BertGenerationConfig(
        vocab_size=second.vocab_size,
        source_vocab_size=None if first.vocab_size == second.vocab_size else first.vocab_size,
        max_seq_len=min(first.max_seq_len, second.max_seq_len),
        dim=first.dim,
        n_layers=first.n_layers,
        n_decoder_layers=None if first.n_layers == second.n_layers else second.n_layers,
        n_heads=first.n_heads,
        hidden_dim=first.hidden_dim,
        activation=first.activation,
        norm_eps=first.norm_eps,
        padding_idx=padding.pop() if len(padding) == 1 else None,  # both sides have the same one or none
        dropout=first.dropout,
        attention_dropout=first.attention_dropout,
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

    The model has no segments, so the vector of segment 0 is added to the positions.  The output bias is that
    of the masked-LM head if the folder has one, otherwise zero.  ``mlm_transform`` and ``mlm_norm`` have no
    place in the model.

    Args:
        model: the model, initialised.
        encoder: the folder that its encoder starts from.
        decoder: the folder that its decoder starts from; None: ``encoder``.
        cross_attention: ``"fresh"`` leaves attention to the source as initialised, as in the paper;
            ``"copied"`` starts it and its norm from the self-attention of the block.

    Raises CheckpointError for a folder without an encoder of full attention, for other shared settings, and
    for sizes that do not fit.
    """
    if cross_attention not in get_args(CrossAttention):
        hint = did_you_mean(str(cross_attention), get_args(CrossAttention))
        raise ConfigError(f"cross_attention is {cross_attention!r}; {hint}")
    first = _Side(model, "encoder", Path(encoder))
    second = _Side(model, "decoder", Path(encoder if decoder is None else decoder))
    return [first.start(), second.start(cross_attention)]


class _Side:
    """One side of ``model`` and the BERT in ``folder`` that it starts from."""

    def __init__(self, model: Any, side: str, folder: Path) -> None:
        self.model, self.side, self.folder = model, side, folder
        self.prefix = "source_" if side == "encoder" else ""
        self.tokens: nn.Embedding = model.source_embedding if self.prefix else model.token_embedding
        self.blocks = model.encoder_blocks if side == "encoder" else model.decoder_blocks
        ours, theirs = model.config, _bert_config(folder)
        wanted = {name: getattr(ours, name) for name in _SHARED}
        wanted |= {"vocab_size": self.tokens.num_embeddings, "n_layers": len(self.blocks)}
        for name, value in wanted.items():
            _require(name, getattr(theirs, name), value, str(folder), f"the model's {side}")
        if ours.max_seq_len > theirs.max_seq_len:
            has = f"{folder} has {theirs.max_seq_len} positions"
            raise CheckpointError(f"{has} and model.max_seq_len is {ours.max_seq_len}; lower it")

    def start(self, cross_attention: CrossAttention | None = None) -> BertStart:
        """Copy the weights; ``cross_attention`` None for the encoder, which has none."""
        bert: Any = load_model(self.folder, dtype=torch.float32)
        head = ["classifier"] if isinstance(bert, TaskModel) else []
        bert = bert.body if head else bert
        c, rows = bert.config, self.model.config.max_seq_len
        self.tokens.weight.copy_(bert.token_embedding.weight)  # [V, D]
        positions = bert.position_embedding.weight[c.position_offset :][:rows]  # [T, D]
        ours = getattr(self.model, f"{self.prefix}position_embedding")
        ours.weight.copy_(positions + bert.segment_embedding.weight[0])
        getattr(self.model, f"{self.prefix}embedding_norm").load_state_dict(bert.embedding_norm.state_dict())
        for block, bert_block in zip(self.blocks, bert.blocks, strict=True):
            state: dict[str, Tensor] = bert_block.state_dict()
            if cross_attention == "copied":
                state |= {
                    f"cross_{key}": value for key, value in state.items() if key.startswith("attention")
                }
            block.load_state_dict(state, strict=cross_attention != "fresh")

        taken = ["token_embedding", "position_embedding", "embedding_norm", f"{c.n_layers} blocks"]
        heads = ("pooler", "mlm_transform", "mlm_norm", "next_sentence")
        dropped = [name for name in heads if getattr(bert, name, None) is not None] + head
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


def _bert_config(folder: Path) -> BertConfig:
    config = body_config(load_config(folder))
    if not encodes(config):
        raise CheckpointError(
            f"{folder} holds a {family_of(config)}; only a bert or roberta can start either side"
        )
    assert isinstance(config, BertConfig)
    if not all(pattern.is_full for pattern in config.patterns):
        raise CheckpointError(
            f"{folder} has attention {config.attention!r}; only a bert or roberta with full attention can "
            "start either side"
        )
    return config


def _padding_idx(folder: Path) -> int | None:
    default = 1 if isinstance(_bert_config(folder), RobertaConfig) else 0  # transformers'
    pad = read_json(folder / "config.json").get("pad_token_id", default)
    return pad if isinstance(pad, int) else None


def _require(name: str, stored: object, wanted: object, folder: str, other: str) -> None:
    if stored != wanted:
        raise CheckpointError(f"{folder} has {name} {stored!r}, {other} has {wanted!r}")
