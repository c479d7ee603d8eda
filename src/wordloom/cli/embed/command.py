"""``wordloom embed VECTORS FILE|-``: the vectors of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wordloom.cli.embed.bags import embed_bags, holds_bags
from wordloom.cli.embed.clusters import OPTIONS, Grouping
from wordloom.cli.embed.model import Level, embed_model, holds_model
from wordloom.cli.embed.words import WordSettings, embed_words
from wordloom.cli.options import (
    DEVICE,
    DTYPE,
    ENCODING_ERRORS,
    FIELD,
    FORCE,
    HEADER,
    TEXT_COLUMN,
    parse_column,
)
from wordloom.cli.usage import UsageError, is_given, refuse, refuse_existing
from wordloom.cli.vectors.output import ROWS, opened
from wordloom.errors import VectorError

if TYPE_CHECKING:
    from wordloom.data.rows.lines import PlacedText

__all__ = ["command"]

_SIF = ("a", "counts", "fit_on", "component", "save_component")
_WORDS = ("method", "split", "cased", "no_phrases", "rows", *_SIF)  # options for word vectors
_MODELS = ("level", "layer", "pooling", "too_long", "device", "dtype")  # options for models
_FILES = ("config.json", "vectors.json", "vocabulary.json", "model.bin")  # every folder has one of them


def command(
    ctx: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="VECTORS",
            help="An encoder or a language model; word vectors (a file or folder); or a bag of words: a "
            "classifier, or a folder that 'vectors documents' wrote.",
            show_default=False,
        ),
    ],
    texts: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="The texts: one on each line of a file, or in each row of a .jsonl file or a table; - is "
            "standard input.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to this file: .npy, .jsonl, .tsv or .parquet for vectors; .npz or .jsonl for bags of "
            "words; .tsv or .jsonl for the cluster of each text.  [default: JSON lines on standard output]",
        ),
    ] = None,
    field: FIELD = "text",
    text_column: TEXT_COLUMN = None,
    header: HEADER = None,
    encoding_errors: ENCODING_ERRORS = "strict",
    force: Annotated[bool, FORCE] = False,
    method: Annotated[
        Literal["mean", "sum", "sif"],
        typer.Option(
            help="How to combine the vectors of words, or of a model's tokens without context. sif: smooth "
            "inverse frequency, with the component that all texts share removed."
        ),
    ] = "mean",
    level: Annotated[
        Level, typer.Option(help="Write one vector for each text, or one for each of its tokens.")
    ] = "text",
    pooling: Annotated[
        Literal["mean", "sum", "max", "cls", "last"] | None,
        typer.Option(
            help="How to pool the vectors of a text's tokens.  [default: as in the folder, else mean]"
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Take the output of this layer; 0 is the embeddings.  [default: the last]", min=0),
    ] = None,
    too_long: Annotated[
        Literal["error", "cut", "window"],
        typer.Option(
            help="Texts with more tokens than the model reads: report an error, truncate them (cut), or read "
            "them in several windows."
        ),
    ] = "error",
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")] = False,
    split: Annotated[
        Literal["words", "whitespace"] | None,
        typer.Option(
            help="How to split texts into words.  [default: as in the run; words for a file of vectors; "
            "the tokenizer of a model]"
        ),
    ] = None,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased",
            help="Keep upper case, or lower-case the texts.  [default: as in the run; uncased for a file of "
            "vectors]",
        ),
    ] = None,
    no_phrases: Annotated[
        bool, typer.Option("--no-phrases", help="Do not join words to the phrases of the run.")
    ] = False,
    a: Annotated[float, typer.Option(help="sif: the smoothing constant in a / (a + p).")] = 1e-3,
    counts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="sif: a file of words and counts.  [default: the counts of the vectors, else estimates from "
            "ranks]",
        ),
    ] = None,
    fit_on: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="sif: estimate the shared component from these texts instead; read as FILE is.",
        ),
    ] = None,
    component: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="sif: use the component that --save-component wrote."),
    ] = None,
    save_component: Annotated[
        Path | None, typer.Option(metavar="FILE", help="sif: write the shared component to this .npy file.")
    ] = None,
    rows: ROWS = None,
    batch_size: Annotated[int, typer.Option(help="How many texts to read at a time.", min=1)] = 1024,
    cluster: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Group the texts into K clusters by their vectors and show the clusters. FILE may be a data "
            "set, such as sst2/dev.",
        ),
    ] = None,
    cluster_method: Annotated[
        Literal["kmeans", "agglomerative"],
        typer.Option(help="Clusters: the algorithm; agglomerative uses Ward's criterion."),
    ] = "kmeans",
    seed: Annotated[int, typer.Option(help="Clusters: the random seed of k-means and t-SNE.", min=0)] = 0,
    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            callback=parse_column,
            help="Clusters: compare the clusters with the labels in this column of a table.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Clusters: draw them into this .png, .svg or .pdf file."),
    ] = None,
    projection: Annotated[
        Literal["pca", "tsne"],
        typer.Option(help="Clusters: how the plot projects vectors to two dimensions."),
    ] = "pca",
    json: Annotated[bool, typer.Option("--json", help="Clusters: print JSON.")] = False,
) -> None:
    """Turn each text, or each of its tokens, into a vector; or cluster the texts."""
    from wordloom.data.rows.lines import placed_texts

    refuse_existing(out, save_component, plot=plot, force=force)
    _check_vectors(model)
    _check_columns(ctx, model)
    _check_clustering(ctx)
    reading: dict[str, Any] = {
        "columns": text_column,
        "header": header,
        "field": field,
        "encoding_errors": encoding_errors,
    }
    groups: Grouping | None = None
    if cluster is not None:
        groups = Grouping.of(
            texts,
            label_column=label_column,
            reading=reading,
            k=cluster,
            method=cluster_method,
            seed=seed,
            out=out,
            plot=plot,
            projection=projection,
            json=json,
        )

    def read(source: str) -> Iterator[PlacedText]:
        return placed_texts([source], **reading) if groups is None or source != texts else iter(groups.given)

    def plain(source: str) -> Iterator[str]:
        return (str(text.text) for text in read(source))

    output: dict[str, Any] = {"out": out, "batch_size": batch_size, "groups": groups}
    if holds_bags(model):
        refuse(ctx, f"{model} holds bags of words", *_WORDS, *_MODELS)
        embed_bags(model, plain(texts), normalize=normalize, **output)
    elif holds_model(model) and not any(is_given(ctx, name) for name in _WORDS):
        if level == "token":
            refuse(ctx, "--level token writes the model's own vectors", "pooling", "normalize")
        settings: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalize": normalize or None}
        settings = {name: value for name, value in settings.items() if value is not None}
        settings |= {"level": level, "device": device, "dtype": dtype, "too_long": too_long}
        embed_model(model, read(texts), **settings, **output)
    else:
        _check_words(ctx)
        embed_words(model, texts, plain, WordSettings.of(ctx.params), normalize=normalize, **output)


def _check_vectors(path: Path) -> None:
    """Raise VectorError if ``path`` holds neither a model nor vectors."""
    if not path.exists():
        raise VectorError(f"'{path}' does not exist; give a trained model's folder, or vectors")
    if path.is_dir() and not any((path / name).exists() for name in _FILES):
        opened(path)


def _check_columns(ctx: typer.Context, model: Path) -> None:
    columns = ctx.params["text_column"]
    if columns is None and ctx.params["label_column"] is None:
        refuse(ctx, "without --text-column no table is read", "header")
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
        refuse(ctx, "without --cluster K there are no clusters", *OPTIONS)
        return
    refuse(ctx, "--cluster groups texts", "level")
    if ctx.params["plot"] is None:
        refuse(ctx, "without --plot nothing is drawn", "projection")
