"""``wordloom vectors train [RECIPE] [key=value ...]``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = ["command"]


def command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="The name of a shipped recipe, or a .toml file; or leave it out and give --corpus, or with "
            "--resume the run alone, by --out."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that replace the recipe's: vectors.dim=50"),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="The text: files, folders, globs, '-', or a data set.  Repeatable."),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help="What ends a text of a .txt file, past which no window reaches: line, blank-line, file, or "
            "the exact line that stands between two.  [default: line; a data set as it says itself]"
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="Field of .jsonl, .json or .parquet that holds the text.  [default: text]"),
    ] = None,
    encoding_errors: Annotated[
        Literal["strict", "replace"] | None,
        typer.Option(help="What to do about invalid UTF-8.  [default: strict]"),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="word2vec, fasttext, fasttext-supervised or glove.  [default: word2vec]"),
    ] = None,
    architecture: Annotated[
        Literal["skipgram", "cbow"] | None, typer.Option(help="[default: skipgram]")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Components of a vector.  [default: 100]")] = None,
    window: Annotated[
        int | None, typer.Option(help="Words looked at to either side.  [default: 5; GloVe 15]")
    ] = None,
    negative: Annotated[int | None, typer.Option(help="Noise words for a window.  [default: 5]")] = None,
    min_count: Annotated[int | None, typer.Option(help="How often a word must occur.  [default: 5]")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Times the text is read.  [default: 5; GloVe 25]")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Learning rate.  [default: 0.025; GloVe 0.05]")] = None,
    phrases: Annotated[
        int | None, typer.Option(help="Passes that join words to phrases.  [default: 0]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Names the random numbers.  [default: 1]")] = None,
    threads: Annotated[int | None, typer.Option(help="[default: one for every processor]")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda or cuda:1; auto: cuda where it is.  [default: auto]"),
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same vectors for any number of threads; slower.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The run's folder.  [default: runs/NAME]")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in the folder stopped.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in the folder.")] = False,
) -> None:
    """Learn word vectors from text; Ctrl-C stops with what is learnt so far, --resume goes on."""
    from wordloom.errors import RecipeError
    from wordloom.recipe.reading import refuse_repeated
    from wordloom.run.progress import TrainingProgress
    from wordloom.run.vectors.train import train_vectors
    from wordloom.vectors.files.saved_state import how_to_go_on

    flags = {
        "vectors.algorithm": algorithm, "vectors.architecture": architecture, "vectors.dim": dim,
        "vectors.window": window, "vectors.negative": negative, "words.min_count": min_count,
        "vectors.epochs": epochs, "vectors.alpha": alpha, "words.phrases": phrases, "seed": seed,
        "vectors.threads": threads, "vectors.device": device,
        "vectors.deterministic": "true" if deterministic else None,
        "data.field": None if field is None else json.dumps(field),
        "data.encoding_errors": encoding_errors,
        "data.separator": None if separator is None else json.dumps(separator),
    }  # fmt: skip
    given = [f"{key}={value}" for key, value in flags.items() if value is not None]
    source: Any = recipe
    if recipe is not None and "=" in recipe:  # no recipe, and a setting stands first
        source, overrides = None, [recipe, *(overrides or [])]
    if source is None and corpus:
        source = {"name": Path(corpus[0]).name.partition(".")[0] or "vectors", "data": {"train": corpus}}
    elif source is None and not resume:
        raise RecipeError("what is to be read? Give a recipe, or the text by --corpus FILE")
    elif corpus:
        given.append(f"data.train={corpus!r}")
    settings = [*given, *(overrides or [])]
    refuse_repeated(settings)
    progress = TrainingProgress()
    result = train_vectors(source, settings, out=out, resume=resume, force=force, progress=progress)
    folder = shlex.quote(str(result.folder))
    supervised = (result.folder / "model.bin").exists()
    question = f"  wordloom vectors {f'predict {folder} FILE' if supervised else f'similar {folder} WORD'}"
    if not result.stopped:
        progress.say([f"done: {result.folder}", question])
        return
    if result.job:
        at = f"stopped at {result.job / result.jobs:.0%}"
        if supervised or (result.folder / "vectors.json").exists():
            progress.say([f"{at}; what is learnt so far answers already:", question, "to go on:"])
        else:
            progress.say(f"{at}; to go on:")
    else:
        progress.say("stopped before training began; to go on:")
    progress.say(f"  {how_to_go_on(result.folder)}")
