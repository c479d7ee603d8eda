"""BERT of each library at the same shapes: a step of masked-language training, and a forward pass.

Each function returns (model, step), as in training_sides.py.  Rows are full, and 15 % of the tokens are
masked.  Dropout is the paper's, including dropout of attention weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from training_sides import BETAS, CLIP, DECAY, LEARNING_RATE, Step

MASKED = 0.15  # share of the tokens
MASK = 103


@dataclass(frozen=True, kw_only=True)
class Shape:
    """BERT's sizes and a batch; ``trains`` selects a training step instead of a pass without gradients."""

    trains: bool
    batch: int
    context: int = 128
    vocab: int = 30522
    dim: int = 768
    layers: int = 12
    heads: int = 12
    dropout: float = 0.1

    @property
    def tokens(self) -> int:
        return self.batch * self.context


SHAPES = {
    "bert-base-train": Shape(trains=True, batch=8),
    "bert-base-forward": Shape(trains=False, batch=32),
    "tiny-train": Shape(trains=True, batch=2, context=16, vocab=200, dim=32, layers=2, heads=2),
    "tiny-forward": Shape(trains=False, batch=2, context=16, vocab=200, dim=32, layers=2, heads=2),
}


def rows(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [batch, context], and targets: the original ids of masked tokens, -100 elsewhere."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, shape.vocab, (shape.batch, shape.context), generator=generator)
    hidden = torch.rand(tokens.shape, generator=generator) < MASKED
    targets = tokens.masked_fill(~hidden, -100)
    return tokens.masked_fill(hidden, min(MASK, shape.vocab - 1)), targets


def wordloom_side(shape: Shape, precision: str, compiled: bool) -> tuple[nn.Module, Step]:
    """Return the trainer's own step, or the model as ``wordloom.load`` returns it."""
    from wordloom.data.batches.masked import MaskedBatch
    from wordloom.models import BertConfig, build
    from wordloom.objectives import masked_lm
    from wordloom.recipe import TrainSettings
    from wordloom.training.precision import compile_blocks
    from wordloom.training.trainer import Trainer

    config = BertConfig(
        vocab_size=shape.vocab, dim=shape.dim, n_layers=shape.layers, n_heads=shape.heads,
        dropout=shape.dropout, masked_lm_head=shape.trains, pooler=not shape.trains,
    )  # fmt: skip
    model: Any = build(config)
    tokens, targets = rows(shape)
    if not shape.trains:
        return _reading(model, precision, compiled, {"tokens": tokens, "attend": None})

    class Batches:
        samples_per_epoch = 1 << 30

        def batch(self, start: int, count: int) -> MaskedBatch:
            return MaskedBatch(tokens, torch.zeros_like(tokens), None, targets)

        def document_ids(self, start: int, count: int) -> list[str]:
            return []

    settings = TrainSettings(
        steps=1 << 20, seq_len=shape.context, batch_size=shape.batch, precision=precision,
        learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], weight_decay=DECAY, clip=CLIP,
        schedule="constant", objective="masked_lm", compile="on" if compiled else "off",
    )  # fmt: skip
    trainer = Trainer(model, masked_lm, Batches(), settings, total_steps=1 << 20)
    compile_blocks(trainer.model, settings, trainer.device)
    return trainer.model, trainer.train_step


def transformers_side(shape: Shape, precision: str, compiled: bool) -> tuple[nn.Module, Step]:
    """Return ``BertForMaskedLM(input_ids, labels=...)`` or ``BertModel(input_ids)``, with SDPA."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=shape.vocab, hidden_size=shape.dim, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=4 * shape.dim,
        hidden_dropout_prob=shape.dropout, attention_probs_dropout_prob=shape.dropout,
        attn_implementation="sdpa",
    )  # fmt: skip
    tokens, targets = rows(shape)
    if not shape.trains:
        return _reading(transformers.BertModel(config), precision, compiled, {"input_ids": tokens})
    model: Any = transformers.BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=DECAY, fused=True
    )
    run = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = run(input_ids=tokens, labels=targets).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def _reading(model: Any, precision: str, compiled: bool, given: dict[str, Any]) -> tuple[nn.Module, Step]:
    model = model.eval()
    if precision == "bf16":
        model = model.bfloat16()
    run = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.inference_mode():
            run(**given)

    return model, step


SIDES = {"wordloom": wordloom_side, "transformers": transformers_side}
