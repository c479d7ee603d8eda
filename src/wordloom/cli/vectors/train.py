"""``wordloom vectors train [RECIPE] [key=value ...]``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from wordloom.run.vectors.vector_run import VectorResult

from wordloom.cli.options import argument, option


def command(
    recipe: str | None = argument(
        None,
        "The name of a shipped recipe, or a .toml file.  Not needed with --corpus, or with --resume "
        "and --out.",
    ),
    overrides: list[str] | None = argument(
        None, "Settings that replace the recipe's: vectors.dim=50", metavar="[KEY=VALUE]..."
    ),
    corpus: list[str] | None = option(
        None, "Training text: files, folders, globs, '-', or a data set.  May be repeated."
    ),
    separator: str | None = option(
        None,
        "End of a text in .txt files, which windows do not cross: line, blank-line, file, or an "
        "exact line between texts.  [default: line, or that of the data set]",
    ),
    field: str | None = option(
        None, "Field of the text in .jsonl, .json or .parquet files.  [default: text]"
    ),
    encoding_errors: Literal["strict", "replace"] | None = option(
        None, "Refuse or replace invalid UTF-8.  [default: strict]"
    ),
    algorithm: str | None = option(
        None, "word2vec, fasttext, fasttext-supervised or glove.  [default: word2vec]"
    ),
    architecture: Literal["skipgram", "cbow"] | None = option(
        None, "Architecture of word2vec and fastText.  [default: skipgram]"
    ),
    dim: int | None = option(None, "Components of a vector.  [default: 100]"),
    window: int | None = option(None, "Highest distance in a window.  [default: 5; GloVe 15]"),
    negative: int | None = option(None, "Negative samples of a window.  [default: 5]"),
    min_count: int | None = option(None, "Lowest count of a word.  [default: 5]"),
    epochs: int | None = option(None, "Passes over the text.  [default: 5; GloVe 25]"),
    alpha: float | None = option(None, "Initial learning rate.  [default: 0.025; GloVe 0.05]"),
    phrases: int | None = option(None, "Passes that join words to phrases.  [default: 0]"),
    seed: int | None = option(None, "Random seed.  [default: 1]"),
    threads: int | None = option(None, "CPU threads.  [default: one a processor]"),
    device: str | None = option(
        None, "auto (CUDA if it is available), cpu, cuda or cuda:1.  [default: auto]"
    ),
    deterministic: bool = option(
        False, "Give equal vectors for any number of threads; slower.", "--deterministic"
    ),
    out: Path | None = option(None, "Folder of the run.  [default: runs/NAME]"),
    resume: bool = option(False, "Continue the run in the folder.", "--resume"),
    force: bool = option(False, "Replace the run in the folder.", "--force"),
) -> None:
    """Train word vectors on text.  Ctrl-C stops and saves them, and --resume continues."""
    from wordloom.errors import RecipeError
    from wordloom.progress import TrainingProgress
    from wordloom.recipe.reading import refuse_repeated
    from wordloom.run.folder import name_of
    from wordloom.run.vectors.train import train_vectors

    options = {
        "vectors.algorithm": algorithm, "vectors.architecture": architecture, "vectors.dim": dim,
        "vectors.window": window, "vectors.negative": negative, "words.min_count": min_count,
        "vectors.epochs": epochs, "vectors.alpha": alpha, "words.phrases": phrases, "seed": seed,
        "vectors.threads": threads, "vectors.device": device,
        "vectors.deterministic": "true" if deterministic else None,
        "data.field": None if field is None else json.dumps(field),
        "data.encoding_errors": encoding_errors,
        "data.separator": None if separator is None else json.dumps(separator)
    }  # fmt: skip
    settings = [f"{key}={value}" for key, value in options.items() if value is not None]
    source: Any = recipe
    if recipe is not None and "=" in recipe:  # a setting without a recipe
        source, overrides = None, [recipe, *(overrides or [])]
    if source is None and corpus:
        source = {"name": name_of(corpus[0], default="vectors"), "data": {"train": corpus}}
    elif source is None and not resume:
        raise RecipeError("there is no training text; give a recipe, or --corpus FILE")
    elif corpus:
        settings.append(f"data.train={corpus!r}")
    settings += overrides or []
    refuse_repeated(settings)
    progress = TrainingProgress()
    progress.say(
        _summary(train_vectors(source, settings, out=out, resume=resume, force=force, progress=progress))
    )


def _summary(result: VectorResult) -> list[str]:
    """Return the outcome and the next commands."""
    from wordloom.vectors.files.saved_state import resume_command

    folder = shlex.quote(str(result.folder))
    supervised = (result.folder / "model.bin").exists()
    query = f"  wordloom vectors {f'predict {folder} FILE' if supervised else f'similar {folder} WORD'}"
    if not result.stopped:
        return [f"done: {result.folder}", query]
    resume = f"  {resume_command(result.folder)}"
    if not result.job:
        return ["stopped before training began; to resume:", resume]
    stopped = f"stopped at {result.job / result.jobs:.0%}"
    if supervised or (result.folder / "vectors.json").exists():
        return [f"{stopped}; the vectors so far are saved:", query, "to resume:", resume]
    return [f"{stopped}; to resume:", resume]
