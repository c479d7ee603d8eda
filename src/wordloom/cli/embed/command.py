"""``wordloom embed MODEL FILE|-``: texts to vectors."""

from __future__ import annotations

import json as json_module
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wordloom.cli.embed.bags import embed_bags, holds_bags
from wordloom.cli.embed.clusters import OPTIONS, Grouping
from wordloom.cli.embed.model import Level, embed_model, holds_model
from wordloom.cli.options import FORCE, HEADER, TEXT_COLUMN
from wordloom.cli.usage import UsageError, is_given, refuse, refuse_existing
from wordloom.cli.vectors.output import ROWS, opened, tell
from wordloom.errors import VectorError

if TYPE_CHECKING:
    from wordloom.data.rows.lines import PlacedText
    from wordloom.vectors import KeyedVectors, WordRule

__all__ = ["command"]

_SIF = ("a", "counts", "fit_on", "component", "save_component")  # options of that method alone
_WORDS = ("split", "cased", "no_phrases")  # how texts become words
_MARKS = ("config.json", "vectors.json", "vocabulary.json", "model.bin")  # one of which every folder has
_OF_MODELS = ("level", "layer", "pooling", "too_long", "device", "dtype")  # of what reads whole texts


def command(
    ctx: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="VECTORS",
            help="A trained model: encoder, GPT, LLaMA or recurrent; word vectors (file or folder); or bags "
            "of words that 'vectors documents' kept or a classifier is made of.",
        ),
    ],
    texts: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help="Texts, one to a line, or to a row of .jsonl or a table; - is stdin."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .npy, .jsonl, .tsv or .parquet file; of bags .npz (scipy's) or .jsonl; of clusters, each "
            "text's, .tsv or .jsonl.  [default: JSON lines on standard output]"
        ),
    ] = None,
    field: Annotated[str, typer.Option(help="Where .jsonl and .parquet rows keep their text.")] = "text",
    text_column: TEXT_COLUMN = None,
    header: HEADER = None,
    encoding_errors: Annotated[
        Literal["strict", "replace"], typer.Option(help="What to do with text that is not UTF-8.")
    ] = "strict",
    force: Annotated[bool, FORCE] = False,
    method: Annotated[
        Literal["mean", "sum", "sif"],
        typer.Option(
            help="Of the words' vectors, or a model's tokens' without context; sif: smooth inverse "
            "frequency, less what texts share."
        ),
    ] = "mean",
    level: Annotated[
        Level, typer.Option(help="models: a vector for each text, or each of its tokens.")
    ] = "text",
    pooling: Annotated[
        Literal["mean", "sum", "max", "cls", "last"] | None,
        typer.Option(help="models: of a text's tokens.  [default: the folder's own, else mean]"),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="models: after so many layers; 0 is the embeddings.  [default: the last]", min=0),
    ] = None,
    too_long: Annotated[
        Literal["error", "cut", "window"],
        typer.Option(help="models: a text that is longer than is read at once."),
    ] = "error",
    device: Annotated[str, typer.Option(help="models: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="models: auto (as stored), fp32, bf16, fp16.")] = "auto",
    normalize: Annotated[bool, typer.Option("--normalize", help="Bring vectors to length 1.")] = False,
    split: Annotated[
        Literal["words", "whitespace"] | None,
        typer.Option(
            help="How texts become words.  [default: as the run made them; of a file, words; of a model, by "
            "its tokenizer]"
        ),
    ] = None,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased", help="Keep upper case, or not.  [default: as the run; of a file, not]"
        ),
    ] = None,
    no_phrases: Annotated[
        bool, typer.Option("--no-phrases", help="Leave apart the words that the run joined to phrases.")
    ] = False,
    a: Annotated[float, typer.Option(help="sif: the smoothing in a / (a + p).")] = 1e-3,
    counts: Annotated[
        Path | None,
        typer.Option(
            help="sif: a file of words and counts.  [default: the vectors' own, else estimated from ranks]"
        ),
    ] = None,
    fit_on: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="sif: other texts to learn the shared part from, read as FILE is."),
    ] = None,
    component: Annotated[
        Path | None, typer.Option(help="sif: the shared part that --save-component kept.")
    ] = None,
    save_component: Annotated[
        Path | None, typer.Option(help="sif: keep the shared part in this .npy file.")
    ] = None,
    rows: ROWS = None,
    batch_size: Annotated[int, typer.Option(help="Texts held at a time.", min=1)] = 1024,
    cluster: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Group the texts by their vectors and show the groups.  FILE may be a named set (sst2/dev).",
        ),
    ] = None,
    cluster_method: Annotated[
        Literal["kmeans", "agglomerative"], typer.Option(help="clusters: how; agglomerative is Ward's.")
    ] = "kmeans",
    seed: Annotated[int, typer.Option(help="clusters: of k-means and t-SNE.", min=0)] = 0,
    label_column: Annotated[
        str | None,
        typer.Option(help="clusters: FILE is a table, and this column is to be compared with the clusters."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="clusters: draw them into this .png, .svg or .pdf file."),
    ] = None,
    projection: Annotated[
        Literal["pca", "tsne"],
        typer.Option(help="clusters: how vectors come into the plane of the plot."),
    ] = "pca",
    json: Annotated[bool, typer.Option("--json", help="clusters: print JSON.")] = False,
) -> None:
    """Turn each text into a vector, or each of its tokens; or cluster the texts.

    A text is a line of a file or a row of a table.
    """
    from wordloom.data.rows.lines import placed_texts
    from wordloom.vectors import TextEmbedder
    from wordloom.vectors.files.embedded_texts import (
        embedding_format,
        load_components,
        save_components,
        write_embeddings,
    )
    from wordloom.vectors.files.word_counts import read_word_counts
    from wordloom.vectors.use.text_embeddings import TextReport

    refuse_existing(out, save_component, plot=plot, force=force)
    _refuse_nothing(model)
    if text_column is not None:
        refuse(ctx, "--text-column says where the texts are", "field")
    if text_column is not None and len(text_column) > 1:
        raise UsageError(
            f"--text-column: {model} reads rows of one text, and {len(text_column)} columns are given; name "
            "one"
        )
    if text_column is None and label_column is None:
        refuse(ctx, "without --text-column no table is read", "header")
    reading: dict[str, Any] = {
        "columns": text_column,
        "header": header,
        "field": field,
        "encoding_errors": encoding_errors,
    }
    groups: Grouping | None = None
    if cluster is None:
        refuse(ctx, "without --cluster K there are no groups", *OPTIONS)
    else:
        refuse(ctx, "clusters are of whole texts", "level")
        if plot is None:
            refuse(ctx, "without --plot nothing is drawn", "projection")
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

    def placed() -> Iterator[PlacedText]:
        return placed_texts([texts], **reading) if groups is None else iter(groups.given)

    def lines() -> Iterator[str]:
        return (str(given.text) for given in placed())

    if holds_bags(model):
        refuse(ctx, f"{model} holds bags of words", "method", *_SIF, *_WORDS, "rows", *_OF_MODELS)
        embed_bags(model, lines(), out, normalize=normalize, batch_size=batch_size, groups=groups)
        return
    if holds_model(model) and not any(is_given(ctx, name) for name in ("method", *_SIF, *_WORDS, "rows")):
        if level == "token":
            why = "vectors of tokens are the model's own: none are pooled, and none brought to length 1"
            refuse(ctx, why, "pooling", "normalize")
        given: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalize": normalize or None}
        embed_model(
            model,
            placed(),
            out,
            groups=groups,
            level=level,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            too_long=too_long,
            **{name: value for name, value in given.items() if value is not None},
        )
        return
    refuse(ctx, "of vectors of words by themselves there are no layers", *_OF_MODELS)
    if method != "sif":
        refuse(ctx, f"--method {method} weighs no frequencies", *_SIF)
    if component is not None:
        refuse(ctx, "--component is what was learnt before", "fit_on", "save_component")
    if out is not None and groups is None:
        embedding_format(out)
    wv = opened(model, rows)
    words, notes = _words(ctx, wv, model, split=split, cased=cased, no_phrases=no_phrases)
    embedder = TextEmbedder(
        wv,
        method,
        split=words,
        a=a,
        frequencies=None if counts is None else read_word_counts(counts),
        components=None if component is None else load_components(component),
    )
    learns = method == "sif" and component is None
    with _readable(texts, lines, twice=learns and fit_on is None and groups is None) as again:
        if learns:
            others = None if fit_on is None else placed_texts([fit_on], **reading)
            learnt = again() if others is None else (str(given.text) for given in others)
            embedder.fit(learnt, batch_size=batch_size)
            if save_component is not None:
                assert embedder.components is not None
                save_components(save_component, embedder.components)
        met = TextReport(0, 0, 0, [])

        def batches() -> Iterator[tuple[list[str], Any]]:
            stream = embedder.stream(again(), batch_size=batch_size, normalize_embeddings=normalize)
            for batch, vectors, further in stream:
                met.add(further)
                yield batch, vectors

        if groups is None:
            n = write_embeddings("-" if out is None else out, batches(), wv.vector_size)
        else:
            groups.take(batches())
    notes.insert(0, str(met))
    if embedder.frequencies_from == "rank":
        notes.append("no counts came with the vectors: frequencies are estimated from ranks, by Zipf's law")
    if out is not None and groups is None:
        notes.append(f"{n:,} vectors of {wv.vector_size} components written to {out}")
    tell(notes)


def _refuse_nothing(model: Path) -> None:
    """Raise VectorError where neither a model nor vectors are, before options of one or the other are."""
    if not model.exists():
        raise VectorError(f"'{model}' does not exist; give a trained model's folder, or vectors")
    if model.is_dir() and not any((model / name).exists() for name in _MARKS):
        opened(model)


def _words(
    ctx: typer.Context,
    wv: KeyedVectors,
    path: Path,
    *,
    split: Literal["words", "whitespace"] | None,
    cased: bool | None,
    no_phrases: bool,
) -> tuple[WordRule | None, list[str]]:
    """How texts become words, as the run did it but for what is given; None: by a model's tokenizer.  And
    what to say of it."""
    from wordloom.vectors import TokenVectors, WordRule, word_rule

    tokens = isinstance(wv, TokenVectors)
    if tokens and split is None:
        refuse(ctx, "a model's tokenizer decides what becomes of upper case", "cased", "no_phrases")
        return None, []
    runs = None if tokens else word_rule(path)
    if runs is None or not runs.phrases:
        refuse(ctx, f"{path} joined no words to phrases", "no_phrases")
    rule = runs or WordRule()
    if split is not None:
        rule = replace(rule, split=split)
    if cased is not None:
        rule = replace(rule, lower=not cased)
    if no_phrases:
        rule = replace(rule, phrases=())
    if runs is None:
        return rule, []
    if rule == runs:
        return rule, [f"texts become words as in {path}: {rule}"]
    return rule, [f"texts become words otherwise than in {path} ({runs}): {rule}"]


@contextmanager
def _readable(
    texts: str, lines: Callable[[], Iterable[str]], *, twice: bool
) -> Iterator[Callable[[], Iterable[str]]]:
    """What begins to read the texts; those of standard input, to be read ``twice``, wait in a file."""
    from wordloom.data.files.source import is_stdin

    if not is_stdin(texts) or not twice:
        yield lines
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8", prefix="wordloom-texts-") as kept:
        kept.writelines(json_module.dumps(text) + "\n" for text in lines())

        def again() -> Iterator[str]:
            kept.seek(0)
            return map(json_module.loads, kept)

        yield again
