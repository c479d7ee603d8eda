"""``wordloom embed VECTORS FILE|-``: the vectors of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument

from wordloom.cli import options
from wordloom.cli.embed import clusters
from wordloom.cli.embed.bags import embed_bags, holds_bags
from wordloom.cli.embed.model import Level, embed_model, holds_model
from wordloom.cli.embed.output import Output
from wordloom.cli.embed.words import WordSettings, embed_words
from wordloom.cli.options import option
from wordloom.cli.usage import UsageError, is_given, refuse, refuse_existing
from wordloom.cli.vectors.output import ROWS, opened
from wordloom.errors import VectorError

if TYPE_CHECKING:
    from wordloom.data.rows.texts import PlacedText

_SIF = ("a", "counts", "fit_on", "component", "save_component")
_WORDS = ("method", "split", "cased", "no_phrases", "rows", *_SIF)  # options for word vectors
_MODELS = ("level", "layer", "pooling", "too_long", "device", "dtype")  # options for models
_MODEL_FILES = ("config.json", "adapter_config.json")
_FILES = (*_MODEL_FILES, "vectors.json", "vocabulary.json", "model.bin")  # every folder has one of them


def command(
    ctx: typer.Context,
    model: Annotated[
        Path,
        Argument(
            metavar="VECTORS",
            help="An encoder or a language model; word vectors (a file or folder); or a bag of words: a "
            "classifier, or a folder that 'vectors documents' wrote.",
        ),
    ],
    texts: Annotated[
        str,
        Argument(
            metavar="FILE|-",
            help="The texts: one on each line of a file, or in each row of a .jsonl file or a table; - is "
            "standard input.",
        ),
    ],
    out: Path | None = option(
        None,
        "Write to this file: .npy, .jsonl, .tsv or .parquet for vectors; .npz or .jsonl for bags of "
        "words; .tsv or .jsonl for the cluster of each text.  [default: JSON lines on standard output]",
        metavar="FILE",
    ),
    field: options.RUN_FIELD = None,
    text_column: options.TEXT_COLUMN = None,
    header: options.HEADER = None,
    encoding_errors: options.ENCODING_ERRORS = "strict",
    force: options.FORCE = False,
    method: Literal["mean", "sum", "sif"] = option(
        "mean",
        "How to combine the vectors of words, or of a model's tokens without context. sif: smooth "
        "inverse frequency, with the component that all texts share removed.",
    ),
    level: Level = option("text", "Write one vector for each text, or one for each of its tokens."),
    pooling: Literal["mean", "sum", "max", "cls", "last"] | None = option(
        None, "How to pool the vectors of a text's tokens.  [default: as in the folder, else mean]"
    ),
    layer: int | None = option(
        None, "Take the output of this layer; 0 is the embeddings.  [default: the last]", min=0
    ),
    too_long: options.TOO_LONG = "error",
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
    normalize: bool = option(False, "Scale vectors to length 1.", "--normalize"),
    split: Literal["words", "whitespace"] | None = option(
        None,
        "How to split texts into words.  [default: as in the run; words for a file of vectors; "
        "the tokenizer of a model]",
    ),
    cased: bool | None = option(
        None,
        "Keep upper case, or lower-case the texts.  [default: as in the run; uncased for a file of vectors]",
        "--cased/--uncased",
    ),
    no_phrases: bool = option(False, "Do not join words to the phrases of the run.", "--no-phrases"),
    a: float = option(1e-3, "sif: the smoothing constant in a / (a + p)."),
    counts: Path | None = option(
        None,
        "sif: a file of words and counts.  [default: the counts of the vectors, else estimates from ranks]",
        metavar="FILE",
    ),
    fit_on: str | None = option(
        None, "sif: estimate the shared component from these texts instead; read as FILE is.", metavar="FILE"
    ),
    component: Path | None = option(
        None, "sif: use the component that --save-component wrote.", metavar="FILE"
    ),
    save_component: Path | None = option(
        None, "sif: write the shared component to this .npy file.", metavar="FILE"
    ),
    rows: ROWS = None,
    batch_size: int = option(1024, "How many texts to read at a time.", min=1),
    cluster: clusters.COUNT = None,
    cluster_method: clusters.METHOD = "kmeans",
    seed: clusters.SEED = 0,
    label_column: clusters.LABEL_COLUMN = None,
    plot: options.PLOT = None,
    projection: clusters.PROJECTION = "pca",
    json: options.JSON = False,
) -> None:
    """Turn texts or tokens into vectors, or cluster texts."""
    from wordloom.data.rows.texts import placed_texts, single_texts

    inputs = (texts, fit_on, counts, component)
    refuse_existing(out, save_component, plot=plot, force=force, inputs=inputs, models=(model,))
    if save_component is not None and save_component.suffix != ".npy":
        raise UsageError(f"--save-component writes a .npy file, not '{save_component}'; name it so")
    _check_vectors(model)
    _check_columns(ctx, model)
    _check_clustering(ctx)
    reading: dict[str, Any] = {"columns": text_column, "header": header, "encoding_errors": encoding_errors}
    reading |= {"field": field} if text_column or field else _of_training(model)
    groups: clusters.Grouping | None = None
    if cluster is not None:
        groups = clusters.Grouping.of(
            texts, label_column=label_column, reading=reading, k=cluster, method=cluster_method, seed=seed,
            projection=projection, out=out, plot=plot, json=json,
        )  # fmt: skip

    def read(source: str) -> Iterator[PlacedText]:
        if groups is not None and source == texts:
            return iter(groups.given)
        return single_texts(placed_texts([source], **reading))

    def plain(source: str) -> Iterator[str]:
        return (str(text.text) for text in read(source))

    how: dict[str, Any] = {"output": Output(out, groups), "batch_size": batch_size}
    if holds_bags(model):
        refuse(ctx, f"{model} holds bags of words", *_WORDS, *_MODELS)
        embed_bags(model, plain(texts), normalize=normalize, **how)
    elif holds_model(model) and not any(is_given(ctx, name) for name in _WORDS):
        if level == "token":
            refuse(ctx, "--level token writes the model's own vectors", "pooling", "normalize")
        settings: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalize": normalize or None}
        settings = {name: value for name, value in settings.items() if value is not None}
        settings |= {"level": level, "device": device, "dtype": dtype, "too_long": too_long}
        embed_model(model, read(texts), **settings, **how)
    else:
        _check_words(ctx)
        embed_words(model, texts, plain, WordSettings.of(ctx.params), normalize=normalize, **how)


def _check_vectors(path: Path) -> None:
    """Raise VectorError if ``path`` holds neither a model nor vectors."""
    if not path.exists():
        raise VectorError(f"'{path}' does not exist; give a trained model's folder, or vectors")
    if path.is_dir() and not any((path / name).exists() for name in _FILES):
        opened(path)


def _of_training(folder: Path) -> dict[str, Any]:
    """Return the columns of single texts, else the field, that the recipe of the run in ``folder`` names."""
    if not any((folder / name).exists() for name in _MODEL_FILES):
        return {"field": None}
    from wordloom.run.checkpoint.loaders import read_checkpoint
    from wordloom.run.prepare import training_columns

    checkpoint = read_checkpoint(folder)
    recipe = checkpoint.recipe
    columns = None if recipe is None else training_columns(recipe, recipe.train.objective)
    if columns is not None and isinstance(columns.text, str | int):
        return {"default": columns}
    return {"field": checkpoint.field}


def _check_columns(ctx: typer.Context, model: Path) -> None:
    columns = ctx.params["text_column"]
    if columns is not None:
        refuse(ctx, "--text-column says where the texts are", "field")
        if len(columns) > 1:
            raise UsageError(
                f"--text-column: {model} reads rows of one text, and {len(columns)} columns are given; name "
                "one"
            )


def _check_words(ctx: typer.Context) -> None:
    refuse(ctx, "the vectors of single words have no layers and no context", *_MODELS)
    if ctx.params["method"] != "sif":
        refuse(ctx, f"--method {ctx.params['method']} uses no frequencies", *_SIF)
    if ctx.params["component"] is not None:
        refuse(ctx, "--component replaces the estimate", "fit_on", "save_component")


def _check_clustering(ctx: typer.Context) -> None:
    if ctx.params["cluster"] is None:
        refuse(ctx, "without --cluster K there are no clusters", *clusters.OPTIONS)
        return
    refuse(ctx, "--cluster groups texts", "level")
    if ctx.params["plot"] is None:
        refuse(ctx, "without --plot nothing is drawn", "projection")
