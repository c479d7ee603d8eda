"""Runs of several ranks: what they must have in common, and what they cannot train."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from wordloom.errors import CheckpointError, RankError, RecipeError
from wordloom.recipe import Recipe
from wordloom.training.ranks import Ranks


def refuse_alone(recipe: Recipe, ranks: Ranks) -> None:
    """Raise RecipeError for a recipe that one process, or fewer of them, must train."""
    s = recipe.train
    if s.optimizer == "lbfgs":
        raise RecipeError(
            "train.optimizer 'lbfgs' searches along a line of all weights in one process; leave out "
            "torchrun, or take adamw or sgd"
        )
    reasons = {
        "truncated_bptt": "carries the state of each row",
        "contrastive": "compares the rows of all ranks",
    }
    if s.objective in reasons and any(
        part.idle
        for rank in range(ranks.size)
        for part in Ranks(rank, ranks.size).parts(s.batch_size, s.micro_batch_size)
    ):
        raise RecipeError(
            f"train.objective '{s.objective}' {reasons[s.objective]}, and {ranks.size} ranks cannot share "
            f"train.batch_size {s.batch_size} in equal steps; leave out train.micro_batch_size, and give "
            "each rank a row"
        )
    if s.inspect and s.shard != "none":
        raise RecipeError("train.inspect reads whole weights, and train.shard shares them out; leave one out")
    beside = s.language_model_texts == "old" and s.language_model_weight
    if recipe.old_task is not None and (beside or s.rehearsal_share is not None):
        raise RecipeError("only one process trains on the text of [old_task] as well; leave out torchrun")


def is_sent_weights(recipe: Recipe) -> bool:
    """Return whether this rank builds no weights, and is sent those of the first rank on its machine.

    Of models that one rank can hold, each rank builds its own.
    """
    large = recipe.train.shard != "none" and recipe.train.objective in (
        "causal_lm",
        "instruction",
        "masked_lm",
    )
    whole = recipe.lora is not None or recipe.old_task is not None  # their weights are read before training
    return large and not whole and os.environ.get("LOCAL_RANK", "0") != "0"


def describe(shard: str, ranks: Ranks) -> str:
    """Return in words what ranks share out."""
    if shard == "none":
        return "each with all weights"
    machine = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
    across = ranks.size if shard == "full" else machine
    return f"weights, gradients and optimizer state shared out over {across}"


def check_equal(ranks: Ranks, facts: dict[str, Any]) -> None:
    """Raise CheckpointError unless all ranks have the same recipe, data, tokenizer and versions."""
    mine = {**facts, "versions": {name: version(name) for name in ("torch", "wordloom", "numpy")}}
    names = sorted(mine)
    digests = [hashlib.sha256(json.dumps(mine[name], sort_keys=True).encode()).digest() for name in names]
    own = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(len(names), 32)
    every = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(every, own)
    for rank, theirs in enumerate(every):
        for name, same in zip(names, (theirs == every[0]).all(dim=1).tolist(), strict=True):
            if not same:
                what = f"rank {rank} has another {_WORDS.get(name, name)} than rank 0"
                if not ranks.is_first:
                    raise RankError(what)
                raise CheckpointError(f"{what}; give all ranks the same")


_WORDS = {"data": "training text", "base": "model to start from", "versions": "version of torch or Wordloom"}
