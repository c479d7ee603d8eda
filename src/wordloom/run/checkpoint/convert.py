"""Make grouped-query or multi-query attention from multi-head (Ainslie et al. 2023, arXiv:2305.13245)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from wordloom.errors import CheckpointError
from wordloom.models import body_config, build, family_of
from wordloom.models.task_model import TaskConfig
from wordloom.run.checkpoint.derived import save_derived
from wordloom.weights import load_config, load_model

Merge = Literal["mean", "first", "random"]
MERGES: tuple[Merge, ...] = ("mean", "first", "random")


def convert_heads(
    source: str | Path,
    out: str | Path,
    *,
    kv_heads: int,
    merge: Merge = "mean",
    seed: int = 0,
    overwrite: bool = False,
) -> int:
    """Write the model of ``source`` with ``kv_heads`` heads of keys and values into ``out``.

    Each new head stands for a group of neighbouring ones.  ``merge`` takes their mean, the first of them, or
    new random weights.  ``kv_heads.json`` names the source and these settings.

    Returns the number of heads that the source has.

    Raises CheckpointError for a family without such heads, a number that does not divide the source's, and
    as :func:`wordloom.weights.save_model`.
    """
    source, out = Path(source), Path(out)
    config = load_config(source)
    body = body_config(config)
    if not hasattr(body, "n_kv_heads"):
        raise CheckpointError(
            f"{source} holds a {family_of(body)}, whose heads cannot share keys and values; give a LLaMA"
        )
    if merge not in MERGES:
        raise CheckpointError(f"unknown merge {merge!r}; allowed: {', '.join(MERGES)}")
    heads = body.kv_heads
    if not 1 <= kv_heads < heads or heads % kv_heads:
        able = [str(n) for n in range(1, heads) if heads % n == 0]
        raise CheckpointError(
            f"{source} has {heads} heads of keys and values, which {kv_heads} new ones cannot stand for; "
            f"allowed: {', '.join(able) or 'none'}"
        )
    new_body = replace(body, n_kv_heads=kv_heads, head_dim=body.head_width)
    new = replace(config, body=new_body) if isinstance(config, TaskConfig) else new_body
    state = load_model(source).state_dict()
    fresh = build(new, generator=torch.Generator().manual_seed(seed)).state_dict()
    merged = _merged(state, fresh, merge, body.head_width)
    facts = {"source": str(source), "kv_heads": kv_heads, "from": heads, "merge": merge, "seed": seed}
    save_derived((new, merged), out, source=source, facts=facts, name="kv_heads.json", overwrite=overwrite)
    return int(heads)


def _merged(
    state: Mapping[str, Tensor], fresh: Mapping[str, Tensor], merge: Merge, head_dim: int
) -> dict[str, Any]:
    """Return ``state`` with the keys and values of ``fresh``'s shapes."""
    merged = dict(state)
    for name, wanted in fresh.items():
        old = state[name]
        if old.shape == wanted.shape:
            continue
        if merge == "random":
            merged[name] = wanted.to(old.dtype)
            continue
        groups = len(wanted) // head_dim
        heads = old.view(groups, -1, head_dim, *old.shape[1:])  # [groups, heads of a group, E, ...]
        one = heads[:, 0] if merge == "first" else heads.float().mean(dim=1).to(old.dtype)
        merged[name] = one.flatten(0, 1).contiguous()
    return merged
