"""Positions: sinusoidal tables and rotary embeddings, both conventions, and their scalings.

Learned positions are a plain ``nn.Embedding`` inside the model that uses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wordloom.errors import ConfigError, did_you_mean
from wordloom.nn.fused import rotate

ROPE_SCALINGS = ("default", "linear", "dynamic", "llama3")


def sinusoidal_positions(length: int, dim: int, *, layout: str = "interleaved") -> Tensor:
    """Return the fixed table of Vaswani et al. 2017 (arXiv:1706.03762, section 3.5), [length, dim] float32.

    ``interleaved`` alternates sine and cosine as the paper prints them; ``halves`` puts all sines
    first, as Marian and fairseq store them, which permutes the columns.

    Raises ConfigError for an odd ``dim`` or an unknown layout.
    """
    if dim % 2:
        raise ConfigError(f"sinusoidal positions need an even dim, not {dim}; choose {dim + 1} or {dim - 1}")
    if layout not in ("interleaved", "halves"):
        hint = did_you_mean(layout, ["interleaved", "halves"])
        raise ConfigError(f"unknown sinusoidal layout {layout!r}; {hint}")
    # float64 while the angles are made: at position 100,000 float32 angles are off by 4e-3
    frequency = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # [length, dim/2]
    if layout == "halves":
        return torch.cat([angle.sin(), angle.cos()], dim=-1).float()
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).float()


class Rotary:
    """Angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864, eq. 15).

    An instance holds no tensors: each call computes the frequencies in float32, so that a model cast to
    bfloat16 loses no precision.

    ``scaling`` takes transformers' names and keys: ``{"rope_type": "linear", "factor": 2.0}``,
    ``"dynamic"`` (NTK-aware, with ``original_max_position_embeddings``), ``"llama3"`` (with
    ``low_freq_factor``, ``high_freq_factor``, ``original_max_position_embeddings``).
    """

    def __init__(
        self, *, head_dim: int, theta: float = 10000.0, scaling: Mapping[str, Any] | None = None
    ) -> None:
        if head_dim % 2:
            raise ConfigError(f"rotary positions turn pairs: head_dim must be even, not {head_dim}")
        self.head_dim = head_dim
        self.theta = theta
        self.scaling = dict(scaling or {})
        self.kind = self.scaling.get("rope_type", self.scaling.get("type", "default"))
        if self.kind not in ROPE_SCALINGS:
            hint = did_you_mean(str(self.kind), ROPE_SCALINGS)
            raise ConfigError(f"unknown rope scaling {self.kind!r}; {hint}")
        needed = {
            "default": (),
            "linear": ("factor",),
            "dynamic": ("factor", "original_max_position_embeddings"),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        }[self.kind]
        missing = [key for key in needed if key not in self.scaling]
        if missing:
            raise ConfigError(f"rope scaling {self.kind!r} needs {', '.join(missing)}; given {self.scaling}")
        for name, value in {"rope_theta": theta, **{key: self.scaling[key] for key in needed}}.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 1e-6 <= value <= 1e12:  # far beyond, angles leave the range of float32
                raise ConfigError(
                    f"rotary positions: {name} must be a number above 0 (1e-6 to 1e12), not {value!r}"
                )
        if self.kind == "dynamic" and head_dim < 4:
            raise ConfigError(f"rope scaling 'dynamic' needs a head_dim of 4 or more, not {head_dim}")
        if self.kind == "llama3" and self.scaling["high_freq_factor"] <= self.scaling["low_freq_factor"]:
            raise ConfigError(
                f"rope scaling 'llama3' needs a high_freq_factor above low_freq_factor; given {self.scaling}"
            )

    def frequencies(self, *, length: int | None = None, device: torch.device | None = None) -> Tensor:
        """Return the angle per position in radians, [head_dim / 2] float32.

        Only ``dynamic`` scaling reads ``length``, the highest position plus one.
        """
        theta = self.theta
        E = self.head_dim
        if self.kind == "dynamic":
            # NTK-aware: stretch the base so that the lowest frequency just reaches the new length
            original = self.scaling["original_max_position_embeddings"]
            factor = self.scaling["factor"]
            length = max(length or original, original)
            theta = theta * ((factor * length / original) - (factor - 1)) ** (E / (E - 2))
        exponent = torch.arange(0, E, 2, dtype=torch.int64, device=device).float() / E
        frequency = 1.0 / (theta**exponent)
        if self.kind == "linear":
            frequency = frequency / self.scaling["factor"]
        elif self.kind == "llama3":
            frequency = self._llama3(frequency)
        return frequency

    def _llama3(self, frequency: Tensor) -> Tensor:
        """Divide the frequencies of long waves by ``factor``, keep those of short ones, and blend between."""
        factor, low = self.scaling["factor"], self.scaling["low_freq_factor"]
        high, original = self.scaling["high_freq_factor"], self.scaling["original_max_position_embeddings"]
        wavelength = 2 * math.pi / frequency
        smooth = (original / wavelength - low) / (high - low)
        blended = (1 - smooth) * frequency / factor + smooth * frequency
        scaled = torch.where(wavelength > original / low, frequency / factor, frequency)
        middle = (wavelength <= original / low) & (wavelength >= original / high)
        return torch.where(middle, blended, scaled)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine for ``positions`` [.., T], each [.., T, head_dim / 2] float32."""
        length = int(positions.max()) + 1 if self.kind == "dynamic" and positions.numel() else None
        frequency = self.frequencies(length=length, device=positions.device)
        angle = positions[..., None].float() * frequency
        return angle.cos(), angle.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, layout: str = "halves") -> Tensor:
    """Rotate the pairs of ``x`` [B, H, T, E] by angles [B or 1, T, E/2]; computed in float32.

    ``halves`` pairs element i with i + E/2 (Hugging Face); ``pairs`` pairs 2i with 2i + 1 (the paper,
    Meta's weights).  Both give equal results after :func:`pairs_to_halves` on the rows of q_proj and k_proj.
    """
    if layout == "halves":
        return rotate(x, cos, sin)
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # [B or 1, 1, T, E/2]
    first, second = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    return turned.to(x.dtype)


def pairs_to_halves(weight: Tensor, *, head_dim: int) -> Tensor:
    """Reorder the rows of a q or k projection (weight [H*E, ..] or bias [H*E]) from pairs to halves."""
    columns = weight.shape[1:]
    return weight.reshape(-1, head_dim // 2, 2, *columns).transpose(1, 2).reshape(-1, *columns)


def halves_to_pairs(weight: Tensor, *, head_dim: int) -> Tensor:
    """Reorder rows from halves to pairs: the inverse of :func:`pairs_to_halves`."""
    columns = weight.shape[1:]
    return weight.reshape(-1, 2, head_dim // 2, *columns).transpose(1, 2).reshape(-1, *columns)
