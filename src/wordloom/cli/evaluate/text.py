"""``wordloom evaluate`` of language models: perplexity of running text, and last words of passages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wordloom.cli.progress import progress_bar
from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.data.text.labelled_documents import LabelledDocuments
    from wordloom.evaluate import Scores
    from wordloom.run import LanguageModel

__all__ = ["documents_of", "labelled_texts", "lambada_scores", "text_scores"]


def labelled_texts(checkpoint: Path) -> LabelledDocuments | None:
    """The texts that stand after their labels, where the checkpoint's recipe has it so."""
    from wordloom.recipe import load_recipe
    from wordloom.recipe.data import CausalData
    from wordloom.run.prepare import labelled_corpus

    path = checkpoint / "recipe.toml"
    recipe = load_recipe(str(path)) if path.exists() else None
    if recipe is None or not isinstance(recipe.data, CausalData) or not recipe.data.label_prefix:
        return None
    from wordloom.data.text.labelled_documents import LabelledDocuments

    return LabelledDocuments(labelled_corpus(recipe))


def documents_of(
    checkpoint: Path, sources: list[str], reading: dict[str, Any], specials: Any
) -> tuple[Iterator[Any], Any]:
    """The documents to score, and how their special tokens are taken."""
    from wordloom.data import documents
    from wordloom.recipe import load_recipe
    from wordloom.recipe.data import TextData
    from wordloom.run.prepare import recipe_corpus

    if sources:
        return documents(sources, **reading), specials
    path = checkpoint / "recipe.toml"
    if not path.exists():
        raise CheckpointError(f"{checkpoint} has no recipe.toml that names a validation text; give a file")
    recipe = load_recipe(str(path))
    return recipe_corpus(recipe).documents("validation"), recipe.data_as(TextData).specials


def text_scores(lm: LanguageModel, documents: list[Any], **settings: Any) -> Scores:
    """Perplexity and bits per byte of ``documents``, with a bar as they are read."""
    from wordloom.evaluate import perplexity
    from wordloom.evaluate.score import perplexity_of

    assert lm.tokenizer is not None
    size = sum(len(d.text if isinstance(d.text, bytes) else d.text.encode()) for d in documents)
    tokens, nats, began = 0, 0.0, time.perf_counter()
    with progress_bar(size) as advance:

        def progress(n_bytes: float, n_tokens: int, more_nats: float) -> None:
            nonlocal tokens, nats
            tokens, nats = tokens + n_tokens, nats + more_nats
            rate = tokens / (time.perf_counter() - began)
            advance(n_bytes, f"perplexity {perplexity_of(nats / max(1, tokens)):,.2f}  {rate:,.0f} tokens/s")

        return perplexity(lm.model, lm.tokenizer, documents, progress=progress, **settings)


def lambada_scores(
    lm: LanguageModel, sources: list[str], *, first: int | None, batch_size: int | None
) -> Scores:
    """LAMBADA's accuracy of last words, of the passages in ``sources``."""
    from wordloom.evaluate import lambada, passages

    assert lm.tokenizer is not None
    found = list(islice(passages(sources), first))
    done = right = 0
    with progress_bar(len(found)) as advance:

        def progress(is_right: bool, _: float) -> None:
            nonlocal done, right
            done, right = done + 1, right + is_right
            advance(1, f"accuracy {right / done:.2%}")

        return lambada(lm.model, lm.tokenizer, found, batch_size=batch_size, progress=progress)
