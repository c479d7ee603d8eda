"""``wordloom evaluate`` of encoders: hidden tokens of the recipe, or pseudo-perplexity of any text."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wordloom.cli.progress import progress_bar
from wordloom.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from wordloom.evaluate.score import Scores

__all__ = ["PAIRS_HINT", "evaluate_encoder"]

PAIRS_HINT = "; pairs of texts and their scores take --task similarity"


def evaluate_encoder(
    checkpoint: Path,
    sources: list[str],
    reading: dict[str, Any],
    how: dict[str, Any],
    *,
    first: int | None,
    loading: dict[str, str],
) -> Scores:
    """The pseudo-perplexity of ``sources``; without any, the validation scores of the run's recipe."""
    from wordloom.data import documents
    from wordloom.data.rows.lines import is_table
    from wordloom.run import load_encoder
    from wordloom.run.models.sentence_folder import pooling_of
    from wordloom.run.tasks.masked import validation_scores

    encoder = load_encoder(checkpoint, **loading)
    if not sources:
        if not (checkpoint / "recipe.toml").exists():
            raise CheckpointError(
                f"{checkpoint} has no recipe.toml that names a validation text; give a file"
            )
        return validation_scores(encoder)
    for source in sources:
        if is_table(source):
            raise DataError(f"'{source}' is a table, and {checkpoint} reads running text here{PAIRS_HINT}")
    try:
        texts = list(islice(documents(sources, **reading), first))
    except DataError as error:
        if pooling_of(checkpoint) is None:
            raise
        raise DataError(f"{error}{PAIRS_HINT}") from None
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
