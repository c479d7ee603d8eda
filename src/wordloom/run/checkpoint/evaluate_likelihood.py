"""The evaluations of checkpoints by the likelihood of texts: last words, minimal pairs and choices.

Each function takes a request and the loaded model.  The keyword arguments are options of ``wordloom
evaluate``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from wordloom.data.files.stream import EncodingErrors
from wordloom.data.rows.choices import choice_rows
from wordloom.data.rows.minimal_pairs import MinimalPair, minimal_pairs
from wordloom.errors import CheckpointError
from wordloom.evaluate import Scores, acceptability, choices, lambada, passages
from wordloom.run.checkpoint.loaders import Request
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder


def evaluate_lambada(
    request: Request,
    lm: LanguageModel,
    *,
    first: int | None = None,
    batch_size: int | None = None,
) -> Scores:
    """Return the accuracy and the loss of the last words of passages; by default those of LAMBADA."""
    read = list(islice(passages(list(request.sources) or ["lambada"]), first))
    with _progress(request, len(read)) as progress:
        return lambada(
            lm.model,
            lm.text_tokenizer,
            read,
            batch_size=batch_size,
            progress=lambda is_right, _: progress(is_right),
        )


def evaluate_minimal_pairs(
    request: Request,
    model: LanguageModel | TextEncoder,
    *,
    first: int | None = None,
    encoding_errors: EncodingErrors = "strict",
    batch_size: int | None = None,
) -> Scores:
    """Return the accuracy on minimal pairs, by default those of BLiMP; ``first`` is of each paradigm."""
    seen = Counter[str]()

    def is_kept(pair: MinimalPair) -> bool:
        seen[pair.paradigm] += 1
        return first is None or seen[pair.paradigm] <= first

    sources = list(request.sources) or ["blimp"]
    pairs = list(filter(is_kept, minimal_pairs(sources, encoding_errors=encoding_errors)))
    with _progress(request, len(pairs)) as progress:
        return acceptability(
            model.model, model.text_tokenizer, pairs, batch_size=batch_size, progress=progress
        )


def evaluate_choices(
    request: Request,
    lm: LanguageModel,
    *,
    first: int | None = None,
    encoding_errors: EncodingErrors = "strict",
    batch_size: int | None = None,
) -> Scores:
    """Return the accuracy on multiple-choice questions, answered by likelihood."""
    if not request.sources:
        raise CheckpointError("--task choices needs questions; give a file or a set: arc-easy/eval")
    rows = list(islice(choice_rows(request.sources, answered=True, encoding_errors=encoding_errors), first))
    with _progress(request, len(rows)) as progress:
        return choices(lm.model, lm.text_tokenizer, rows, batch_size=batch_size, progress=progress)


@contextmanager
def _progress(request: Request, total: int) -> Iterator[Callable[[bool], None]]:
    """Yield a function that shows the share of right items so far."""
    done = right = 0
    with request.reporter.progress(total) as advance:

        def progress(is_right: bool) -> None:
            nonlocal done, right
            done, right = done + 1, right + is_right
            advance(1, f"accuracy {right / done:.2%}")

        yield progress
