"""``wordloom evaluate`` of encoders: hidden tokens of the recipe, or pseudo-perplexity of any text."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wordloom.cli.progress import progress_bar
from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.evaluate.score import Scores

__all__ = ["evaluate_encoder"]


def evaluate_encoder(
    checkpoint: Path,
    sources: list[str],
    reading: dict[str, Any],
    how: dict[str, Any],
    *,
    first: int | None,
    loading: dict[str, str],
) -> Scores:
    """Of ``sources`` pseudo-perplexity; without any, what the recipe's run says of its validation part."""
    from wordloom.data import documents
    from wordloom.run import load_encoder
    from wordloom.run.tasks.masked import validation_scores

    encoder = load_encoder(checkpoint, **loading)
    if not sources:
        if not (checkpoint / "recipe.toml").exists():
            raise CheckpointError(
                f"{checkpoint} has no recipe.toml that names a validation text; give a file"
            )
        return validation_scores(encoder)
    texts = list(islice(documents(sources, **reading), first))
    total = sum(
        len(ids) for ids in encoder.text_tokenizer.encode_batch([t.text for t in texts], specials="text")
    )
    began, before = time.perf_counter(), 0
    with progress_bar(total) as advance:

        def progress(done: int) -> None:
            nonlocal before
            advance(done - before, f"{done / (time.perf_counter() - began):,.0f} tokens/s")
            before = done

        return encoder.pseudo_perplexity(texts, progress=progress, **how)
