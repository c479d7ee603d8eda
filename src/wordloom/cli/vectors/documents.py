"""``wordloom vectors documents SOURCE TEXT...``: the documents nearest to a text, as bags of words."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.usage import refuse
from wordloom.cli.vectors.output import new_table, print_json, print_notes, shown
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.data import DocumentBags

# options that only counting uses
_COUNTING = ("features", "split", "tokenizer", "cased", "max_ngram", "min_count", "separator", "field", "out")
_LONGEST = 300  # characters of a document shown in a table


def documents(
    ctx: typer.Context,
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="The documents: a file, folder, glob or data set; or a folder that --out wrote.",
        ),
    ],
    texts: list[str] | None = argument(None, "Query texts.", metavar="TEXT..."),
    top_k: int = option(10, "Number of documents for each text.", min=1),
    features: Literal["tfidf", "binary", "counts"] = option(
        "tfidf", "Weight of a word: tf-idf, 1 for its presence, or its count."
    ),
    split: Literal["words", "whitespace"] = option(
        "words", "Split texts into words and punctuation marks, or at white space."
    ),
    tokenizer: Path | None = option(None, "Split texts with this tokenizer instead.", metavar="FOLDER"),
    cased: bool = option(False, "Keep upper case.", "--cased"),
    max_ngram: int = option(1, "Words of the longest n-gram.", min=1),
    min_count: int = option(1, "Lowest count of a word.", min=1),
    separator: str | None = option(
        None,
        "End of a document in plain text: line, blank-line, file, or an exact line.  "
        "[default: line, or that of the data set]",
    ),
    field: str | None = option(
        None, "Column of the text: a name, or in .tsv and .csv files a number from 1."
    ),
    out: Path | None = option(
        None, "Write the counts to a folder, for later queries and for embed.", metavar="FOLDER"
    ),
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Find the documents nearest to a text.

    Nearness is the cosine of their bags of words.  The command needs no labels and no training.
    """
    from wordloom.data import DocumentBags
    from wordloom.data.bags.documents import refuse_taken
    from wordloom.text import Tokenizer

    if not texts and out is None:
        raise DataError("there is no query text; give one or more, or --out FOLDER")
    if out is None:
        refuse(ctx, "without --out nothing is written", "force")
    folder = Path(source)
    if (folder / "bags.json").exists():
        refuse(ctx, f"the documents of {source} are counted already", *_COUNTING)
        bags = DocumentBags.from_pretrained(folder)
    else:
        if tokenizer is not None:
            refuse(ctx, "the tokenizer splits texts", "split", "cased")
        if out is not None:
            refuse_taken(out, overwrite=force)  # before counting
        about = {"source": _absolute(source), "separator": separator, "field": field}
        settings: dict[str, Any] = {
            "features": features, "split": split, "lower": not cased, "max_ngram": max_ngram,
            "min_count": min_count, "tokenizer": tokenizer and Tokenizer.from_pretrained(tokenizer)
        }  # fmt: skip
        with Console(stderr=True).status(f"counting the words of {source}"):  # shown on a terminal only
            bags = DocumentBags.fit(_texts(about), **settings)
        bags.about = about
        if out is not None:
            bags.save_pretrained(out, overwrite=force)
    _answer(bags, source, texts or [], top_k, out, json=json)


def _absolute(source: str) -> str:
    """Return ``source`` as an absolute path, unless it is standard input or a data set."""
    from wordloom.data.sets.fetch import names_dataset

    if source.startswith("-") or names_dataset(source):
        return source
    return os.path.abspath(os.path.expanduser(source))


def _texts(about: dict[str, Any]) -> Any:
    """Return the documents, from the description that the counts keep."""
    from wordloom.data import texts_of

    source, field = about["source"], about["field"]
    if source.startswith("-"):
        raise DataError("documents are read twice, and standard input only once; give a file")
    number = field is not None and field.isdecimal()
    return texts_of(source, separator=about["separator"], field=int(field) if number else field)


def _answer(
    bags: DocumentBags, source: str, asked: list[str], top_k: int, out: Path | None, *, json: bool
) -> None:
    results = [bags.nearest(text, top_k) for text in asked]
    read = _read_again(bags, {near.index for nearest in results for near in nearest})
    answers: list[dict[str, Any]] = [
        {
            "text": text,
            "nearest": [
                {"document": near.index + 1, "cosine": near.similarity, "text": read.get(near.index)}
                for near in nearest
            ],
        }
        for text, nearest in zip(asked, results, strict=True)
    ]
    unmatched = [answer["text"] for answer in answers if not answer["nearest"]]
    notes = [f"{text!r} shares no word with any document" for text in unmatched]
    if _gone(bags):
        notes.append(f"the documents are no longer at {bags.about['source']}: their texts are not shown")
    notes.append(f"{len(bags):,} documents, {len(bags.vectorizer):,} words, features {bags.features}")
    if out is not None:
        notes.append(f"written to {out}")
    if json:
        print_json(source=source, documents=len(bags), answers=answers, notes=notes)
        return
    console = Console()
    for answer in answers:
        table = new_table(_short(answer["text"]), "cosine", "document")
        for near in answer["nearest"]:
            table.add_row(shown(_short(near["text"] or "")), f"{near['cosine']:.4f}", f"{near['document']:,}")
        console.print(table)
        console.print()
    print_notes(notes)


def _short(text: str) -> str:
    """Return a text on one line, truncated if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _gone(bags: DocumentBags) -> bool:
    """Return whether the documents no longer exist."""
    source = bags.about.get("source", "")
    return os.path.isabs(source) and not os.path.exists(source) and not glob.glob(source)


def _read_again(bags: DocumentBags, wanted: set[int]) -> dict[int, str]:
    """Return the texts of the documents with these numbers, or none if the documents no longer exist.

    Raises DataError if the documents have changed.
    """
    texts: dict[int, str] = {}
    if not wanted or "source" not in bags.about or _gone(bags):
        return texts
    for number, text in enumerate(_texts(bags.about)):
        if number in wanted:
            texts[number] = text
            if len(texts) == len(wanted):
                break
    order = sorted(wanted)
    again = bags.vectorizer.counts([texts.get(number, "") for number in order])
    if (again != bags.counts[order]).nnz:
        raise DataError(
            f"the documents of '{bags.about['source']}' have changed since they were counted; count again"
        )
    return texts
