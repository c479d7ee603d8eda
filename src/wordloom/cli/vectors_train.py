"""``wordloom vectors train [RECIPE] [key=value ...]``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = ["command"]


def command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="The name of a shipped recipe, or a .toml file; or leave it out and give --corpus."
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
    algorithm: Annotated[
        str | None, typer.Option(help="word2vec, fasttext or fasttext-supervised.  [default: word2vec]")
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
    """Learn word vectors from text; Ctrl-C saves and stops, --resume goes on."""
    from wordloom.errors import RecipeError
    from wordloom.run.progress import TrainingProgress
    from wordloom.run.train_vectors import train_vectors

    flags = {
        "vectors.algorithm": algorithm, "vectors.architecture": architecture, "vectors.dim": dim,
        "vectors.window": window, "vectors.negative": negative, "words.min_count": min_count,
        "vectors.epochs": epochs, "vectors.alpha": alpha, "words.phrases": phrases, "seed": seed,
        "vectors.threads": threads, "vectors.device": device,
        "vectors.deterministic": "true" if deterministic else None,
    }  # fmt: skip
    given = [f"{key}={value}" for key, value in flags.items() if value is not None]
    source: Any = recipe
    if recipe is not None and "=" in recipe:  # no recipe, and a setting stands first
        source, overrides = None, [recipe, *(overrides or [])]
    if source is None:
        if not corpus:
            raise RecipeError("what is to be read? Give a recipe, or the text by --corpus FILE")
        source = {"name": Path(corpus[0]).name.partition(".")[0] or "vectors", "data": {"train": corpus}}
    elif corpus:
        given.append(f"data.train={corpus!r}")
    progress = TrainingProgress()
    result = train_vectors(
        source, [*given, *(overrides or [])], out=out, resume=resume, force=force, progress=progress
    )
    if result.stopped:
        progress.say(f"stopped at {result.job / result.jobs:.0%}; to go on:")
        folder = shlex.quote(str(result.folder))
        progress.say(f"  wordloom vectors train {folder} --out {folder} --resume")
    else:
        progress.say(f"done: {result.folder}")
        supervised = (result.folder / "model.bin").exists()
        question = "predict {} FILE" if supervised else "similar {} WORD"
        progress.say(f"  wordloom vectors {question.format(result.folder)}")
