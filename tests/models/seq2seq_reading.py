"""Recurrent encoder-decoders of few components, and a reading of the papers' equations for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wordloom.models import Seq2Seq, Seq2SeqConfig, build

__all__ = ["SHAPE", "N", "Reading", "S", "T", "V", "ids", "made", "padded"]

V, N, S, T = 29, 23, 6, 5  # target and source vocabulary, longest source, prefix
SHAPE: dict[str, Any] = {"vocab_size": V, "source_vocab_size": N, "dim": 6, "hidden_dim": 5, "n_layers": 2}


def made(**changes: Any) -> Seq2Seq:
    """A model whose weights are large enough that every part of it shows in the logits."""
    generator = torch.Generator().manual_seed(0)
    model: Seq2Seq = build(Seq2SeqConfig(**{**SHAPE, **changes}), generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.3, generator=generator))
        for layer in model.blocks:
            if layer.cell == "rnn_relu":  # whose states would grow from step to step
                layer.hidden_proj.weight.mul_(0.4)
                if layer.input_proj.bias is not None:  # which begin near 0, so that all of a few may be off
                    layer.input_proj.bias.add_(0.3)
    return model.eval()


def ids(size: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed))


def padded(*lengths: int) -> tuple[Tensor, Tensor]:
    source = ids(N, len(lengths), max(lengths), seed=2)
    return source, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


class Reading:
    """One source and one prefix by the equations, a vector at a time; of the model its weights alone."""

    def __init__(self, model: Seq2Seq) -> None:
        self.p, self.c = dict(model.named_parameters()), model.config
        if self.c.tie_embeddings:
            self.p["lm_head.weight"] = self.p["token_embedding.weight"]

    def product(self, name: str, x: Tensor) -> Tensor:
        bias = self.p.get(f"{name}.bias")
        return self.p[f"{name}.weight"] @ x + (0 if bias is None else bias)

    def step(self, name: str, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, U = state[0], self.p[f"{name}.hidden_proj.weight"]
        H = len(h)
        wx, uh = self.product(f"{name}.input_proj", x).split(H), (U @ h).split(H)
        s, tanh = torch.sigmoid, torch.tanh
        match self.c.cell:
            case "rnn_tanh":
                return (tanh(wx[0] + uh[0]),)
            case "rnn_relu":
                return (torch.relu(wx[0] + uh[0]),)
            case "lstm":
                i, f, g, o = (w + u for w, u in zip(wx, uh, strict=True))
                c = s(f) * state[1] + s(i) * tanh(g)
                return s(o) * tanh(c), c
            case "lstm_1997":
                i, g, o = (w + u for w, u in zip(wx, uh, strict=True))
                c = state[1] + s(i) * tanh(g)
                return s(o) * tanh(c), c
        r, z = s(wx[0] + uh[0]), s(wx[1] + uh[1])
        if self.c.cell == "gru":
            return ((1 - z) * h + z * tanh(wx[2] + U[2 * H :] @ (r * h)),)
        inner = self.p.get(f"{name}.candidate_bias", 0)
        return (z * h + (1 - z) * tanh(wx[2] + r * (uh[2] + inner)),)

    def read(self, name: str, xs: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        zero = torch.zeros(self.c.hidden_dim or 0)
        state: tuple[Tensor, ...] = (zero, zero) if self.c.cell.startswith("lstm") else (zero,)
        found = []
        for x in xs:
            state = self.step(name, x, state)
            found.append(state[0])
        return found, state

    def encode(self, source: list[int]) -> tuple[list[Tensor], list[tuple[Tensor, ...]], Tensor]:
        """The memory, each layer's first state in the decoder, and the fixed context vector."""
        xs = [self.p["source_embedding.weight"][token] for token in source]
        xs = xs[::-1] if self.c.reverse_source else xs
        states = []
        for i in range(self.c.n_layers):
            there, state = self.read(f"encoder_blocks.{i}.forwards", xs)
            if self.c.bidirectional:
                back, other = self.read(f"encoder_blocks.{i}.backwards", xs[::-1])
                there = [torch.cat([a, b]) for a, b in zip(there, back[::-1], strict=True)]
                state = tuple(torch.cat([a, b]) for a, b in zip(state, other, strict=True))
            xs = there
            states.append(state)
        context = states[-1][0]
        if self.c.bidirectional:
            states = [
                tuple(self.product(f"bridges.{i}.{j}", part) for j, part in enumerate(state))
                for i, state in enumerate(states)
            ]
            states = [(torch.tanh(state[0]), *state[1:]) for state in states]
        xs = xs[::-1] if self.c.reverse_source else xs
        if self.c.memory_projection:
            xs = [self.product("memory_proj", x) for x in xs]
        return xs, states, context

    def attend(self, q: Tensor, memory: list[Tensor]) -> tuple[Tensor, Tensor]:
        match self.c.attention:
            case "dot":
                e = [q @ m for m in memory]
            case "general":
                e = [q @ (self.p["scorer.key_proj.weight"] @ m) for m in memory]
            case _:
                W, U = self.p["scorer.query_proj.weight"], self.p["scorer.key_proj.weight"]
                e = [self.p["scorer.v"] @ torch.tanh(W @ q + U @ m) for m in memory]
        odds = torch.exp(torch.stack(e))
        weights = odds / odds.sum()
        return sum((w * m for w, m in zip(weights, memory, strict=True)), torch.zeros(())), weights

    def __call__(self, source: list[int], prefix: list[int | None]) -> tuple[Tensor, Tensor]:
        """(logits [T, V], weights [T, S]); a token None is the likeliest after the step before."""
        memory, states, context = self.encode(source)
        o, logits, seen = torch.zeros(self.c.hidden_dim or 0), [], []
        for token in prefix:
            x = self.p["token_embedding.weight"][logits[-1].argmax() if token is None else token]
            parts, c, weights = [x], None, torch.zeros(len(source))
            if self.c.feed_context:
                c = context
                parts.append(c)
            if self.c.attention != "none" and self.c.query == "previous":
                c, weights = self.attend(states[-1][0], memory)
                parts.append(c)
            if self.c.input_feeding:
                parts.append(o)
            h = torch.cat(parts)
            for i, state in enumerate(states):
                states[i] = self.step(f"decoder_blocks.{i}", h, state)
                h = states[i][0]
            if self.c.attention != "none" and self.c.query == "current":
                c, weights = self.attend(h, memory)
            o = h
            if self.c.deep_output or (self.c.attention != "none" and self.c.query == "current"):
                deep = [x] if self.c.deep_output else []
                o = torch.tanh(
                    self.product("readout_proj", torch.cat([h, *([] if c is None else [c]), *deep]))
                )
            out = (
                o
                if self.c.hidden_dim == self.c.dim or not self.c.tie_embeddings
                else self.product("output_proj", o)
            )
            logits.append(self.product("lm_head", out))
            seen.append(weights)
        return torch.stack(logits), torch.stack(seen)
