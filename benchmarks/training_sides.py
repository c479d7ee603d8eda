"""One training step of each library at the same shapes: forward, loss, backward, clip 1.0, fused AdamW.

Each ``*_side`` function returns (model, step), and ``step()`` takes one complete optimizer step.  Every side
uses what its own documentation recommends, and the fused optimizer.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

LITGPT = Path(__file__).parent / "peers" / ".litgpt"
LEARNING_RATE, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0

Step = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and a batch; ``kv_heads`` None selects GPT-2's wiring, a number LLaMA's."""

    vocab: int
    dim: int
    layers: int
    heads: int
    context: int
    batch: int
    kv_heads: int | None = None
    hidden: int | None = None

    @property
    def tokens(self) -> int:
        return self.batch * self.context


SHAPES = {
    "gpt2-char": Shape(vocab=65, dim=384, layers=6, heads=6, context=256, batch=16),
    "gpt2-124m": Shape(vocab=50257, dim=768, layers=12, heads=12, context=512, batch=2),
    "llama-125m": Shape(
        vocab=32000, dim=768, layers=12, heads=12, kv_heads=4, hidden=2048, context=512, batch=2
    ),
    "tiny": Shape(
        vocab=97, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, context=32, batch=2
    ),  # for --quick
}


def random_rows(shape: Shape) -> torch.Tensor:
    """Return token ids [batch, context + 1], equal for every side."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, shape.vocab, (shape.batch, shape.context + 1), generator=generator)


def wordloom_side(shape: Shape, precision: str, compiled: bool) -> tuple[nn.Module, Step]:
    """Return the trainer's own step: everything that a run does between two batches."""
    from wordloom.data.batches.causal import CausalBatch
    from wordloom.models import GPT2Config, LlamaConfig, build
    from wordloom.objectives import causal_lm
    from wordloom.recipe import TrainSettings
    from wordloom.training.precision import compile_blocks
    from wordloom.training.trainer import Trainer

    sizes: dict[str, Any] = {"vocab_size": shape.vocab, "max_seq_len": shape.context, "dim": shape.dim,
                             "n_layers": shape.layers, "n_heads": shape.heads}  # fmt: skip
    config = (
        GPT2Config(**sizes, dropout=0.0)
        if shape.kv_heads is None
        else LlamaConfig(**sizes, n_kv_heads=shape.kv_heads, hidden_dim=shape.hidden, norm_eps=1e-5)
    )
    rows = random_rows(shape)

    class Batches:
        samples_per_epoch = 1 << 30

        def batch(self, start: int, count: int) -> CausalBatch:
            return CausalBatch(rows[:, :-1], rows[:, 1:])

        def document_ids(self, start: int, count: int) -> list[str]:
            return []

    settings = TrainSettings(
        steps=1 << 20, seq_len=shape.context, batch_size=shape.batch, precision=precision,
        learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], weight_decay=DECAY, clip=CLIP,
        schedule="constant", compile="on" if compiled else "off",
    )  # fmt: skip
    trainer = Trainer(build(config), causal_lm, Batches(), settings, total_steps=1 << 20)
    compile_blocks(trainer.model, settings, trainer.device)
    return trainer.model, trainer.train_step


def transformers_side(shape: Shape, precision: str, compiled: bool) -> tuple[nn.Module, Step]:
    """Return ``*LMHeadModel(input_ids, labels=...)`` with SDPA, and the step of transformers' examples."""
    import transformers

    if shape.kv_heads is None:
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=shape.vocab, n_positions=shape.context, n_embd=shape.dim, n_layer=shape.layers,
            n_head=shape.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
            eos_token_id=None, attn_implementation="sdpa",
        ))  # fmt: skip
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.dim, intermediate_size=shape.hidden,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads, max_position_embeddings=shape.context,
            rms_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="sdpa",
        ))  # fmt: skip
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=DECAY, fused=True
    )
    tokens = random_rows(shape)[:, :-1].contiguous()  # the model shifts its labels itself
    run = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = run(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def litgpt_side(shape: Shape, precision: str, compiled: bool) -> tuple[nn.Module, Step]:
    """Return the inner loop of ``litgpt/pretrain.py``: Fabric, chunked_cross_entropy, fabric.clip_gradients.

    It has no learned positions, so its GPT-2 goes without any: a little less work than the others'.  The
    fused optimizer, which it takes on CUDA only, is given to it here too.
    """
    sys.path.insert(0, str(LITGPT))
    import lightning
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    sizes: dict[str, Any] = {"block_size": shape.context, "vocab_size": shape.vocab,
                             "padded_vocab_size": shape.vocab, "n_layer": shape.layers, "n_head": shape.heads,
                             "n_embd": shape.dim, "norm_eps": 1e-5}  # fmt: skip
    if shape.kv_heads is None:
        config = Config(**sizes, rotary_percentage=0.0, parallel_residual=False, bias=True, attn_bias=True,
                        gelu_approximate="tanh")  # fmt: skip
    else:
        config = Config(**sizes, n_query_groups=shape.kv_heads, rotary_percentage=1.0,
                        parallel_residual=False, bias=False, norm_class_name="RMSNorm",
                        mlp_class_name="LLaMAMLP", intermediate_size=shape.hidden)  # fmt: skip
    fabric = lightning.Fabric(
        accelerator="cpu", devices=1, precision="bf16-mixed" if precision == "bf16" else "32-true"
    )
    with contextlib.redirect_stdout(sys.stderr):
        model: Any = GPT(config)
    if shape.kv_heads is None:
        model.transformer.wte.weight = model.lm_head.weight  # train.tie_embeddings
    weights = model
    model = fabric.setup(torch.compile(model) if compiled else model)
    optimizer: Any = fabric.setup_optimizers(
        torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=DECAY, fused=True)
    )
    rows = random_rows(shape)
    tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step() -> None:
        loss = chunked_cross_entropy(model(tokens), targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return weights, step


SIDES = {"wordloom": wordloom_side, "transformers": transformers_side, "litgpt": litgpt_side}
