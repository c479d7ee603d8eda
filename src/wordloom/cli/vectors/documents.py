"""``wordloom vectors documents SOURCE TEXT...``: the documents nearest to a text, by the words they share."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from wordloom.cli.options import FORCE
from wordloom.cli.usage import refuse
from wordloom.cli.vectors.output import JSON, made_table, print_json, shown, tell
from wordloom.errors import DataError

if TYPE_CHECKING:
    from wordloom.data import DocumentBags

__all__ = ["documents"]

# what is settled when the documents are counted
_COUNTING = ("features", "split", "tokenizer", "cased", "max_ngram", "min_count", "separator", "field", "out")
_LONGEST = 300  # characters of a document shown in a table


def documents(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The documents: a file, folder, glob or data set; or the folder that --out kept.",
        ),
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT...", help="Texts to find the nearest documents to.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="How many documents for each text.", min=1)] = 10,
    features: Annotated[
        Literal["tfidf", "binary", "counts"],
        typer.Option(help="What of a word counts: how often and how rare, its presence, or how often."),
    ] = "tfidf",
    split: Annotated[
        Literal["words", "whitespace"],
        typer.Option(help="How texts become words: words and punctuation marks, or at white space."),
    ] = "words",
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A tokenizer, whose tokens are the words instead.")
    ] = None,
    cased: Annotated[
        bool, typer.Option("--cased", help="Keep upper case.  [default: lower-case words]")
    ] = False,
    max_ngram: Annotated[int, typer.Option(help="Words in the longest run that counts as one.", min=1)] = 1,
    min_count: Annotated[int, typer.Option(help="How often a word must occur.", min=1)] = 1,
    separator: Annotated[
        str | None,
        typer.Option(
            help="What ends a document in plain text: line, blank-line, the text of one line, or file.  "
            "[default: line; of a data set, its own]"
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="Where rows keep their text: a name, or in a .tsv or .csv a number from 1."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep what was counted, for later and for embed.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
    json: JSON = False,
) -> None:
    """Find the documents nearest to a text, by their words.

    By the cosine of their bags of words: no labels are needed, and nothing is trained.
    """
    from wordloom.data import DocumentBags
    from wordloom.data.bags.documents import refuse_taken

    if not texts and out is None:
        raise DataError("there is no text to find documents for; give one or more, or --out FOLDER")
    if out is None:
        refuse(ctx, "without --out nothing is kept", "force")
    folder = Path(source)
    if (folder / "bags.json").exists():
        refuse(ctx, f"{source} was counted before", *_COUNTING)
        bags = DocumentBags.from_pretrained(folder)
    else:
        if tokenizer is not None:
            refuse(ctx, "the tokenizer decides what words are", "split", "cased")
        if out is not None:
            refuse_taken(out, overwrite=force)  # before all is counted
        kept = {"source": _lasting(source), "separator": separator, "field": field}
        settings = {
            "features": features, "split": split, "lower": not cased, "max_ngram": max_ngram,
            "min_count": min_count, "tokenizer": _tokenizer(tokenizer),
        }  # fmt: skip
        with Console(stderr=True).status(f"counting the words of {source}"):  # shown on a terminal alone
            bags = DocumentBags.fit(_texts(kept), **settings)
        bags.about = kept
        if out is not None:
            bags.save_pretrained(out, overwrite=force)
    _answer(bags, source, texts or [], top_k, out, json=json)


def _lasting(source: str) -> str:
    """``source`` in a form that holds in every folder; a data set is known by its name anywhere."""
    from wordloom.data.sets.fetch import names_dataset

    if source.startswith("-") or names_dataset(source):
        return source
    return os.path.abspath(os.path.expanduser(source))


def _tokenizer(folder: Path | None) -> Any:
    if folder is None:
        return None
    from wordloom.text import Tokenizer

    return Tokenizer.from_pretrained(folder)


def _texts(kept: dict[str, Any]) -> Any:
    """The documents once more, by what is kept of where they are."""
    from wordloom.data import texts_of

    source, field = kept["source"], kept["field"]
    if source.startswith("-"):
        raise DataError("documents are read twice, standard input only once; name a file")
    number = field is not None and field.isdecimal()
    return texts_of(source, separator=kept["separator"], field=int(field) if number else field)


def _answer(
    bags: DocumentBags, source: str, asked: list[str], top_k: int, out: Path | None, *, json: bool
) -> None:
    found = [bags.nearest(text, top_k) for text in asked]
    read = _read_again(bags, {near.index for answers in found for near in answers})
    answers: list[dict[str, Any]] = [
        {
            "text": text,
            "nearest": [
                {"document": near.index + 1, "cosine": near.similarity, "text": read.get(near.index)}
                for near in nearest
            ],
        }
        for text, nearest in zip(asked, found, strict=True)
    ]
    lonely = [answer["text"] for answer in answers if not answer["nearest"]]
    notes = [f"{text!r} shares no word with any document" for text in lonely]
    if _gone(bags):
        notes.append(f"the documents are no longer at {bags.about['source']}: their texts are not shown")
    notes.append(f"{len(bags):,} documents, {len(bags.vectorizer):,} words, features {bags.features}")
    if out is not None:
        notes.append(f"kept in {out}")
    if json:
        print_json(source=source, documents=len(bags), answers=answers, notes=notes)
        return
    console = Console()
    for answer in answers:
        table = made_table(_short(answer["text"]), "cosine", "document")
        for near in answer["nearest"]:
            table.add_row(shown(_short(near["text"] or "")), f"{near['cosine']:.4f}", f"{near['document']:,}")
        console.print(table)
        console.print()
    tell(notes)


def _short(text: str) -> str:
    """A text in one line, and not too long a one."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _gone(bags: DocumentBags) -> bool:
    """Whether nothing is left where the documents were."""
    source = bags.about.get("source", "")
    return os.path.isabs(source) and not os.path.exists(source) and not glob.glob(source)


def _read_again(bags: DocumentBags, wanted: set[int]) -> dict[int, str]:
    """The texts of the documents of these numbers; none where they are there no more, or nothing is kept of
    where they are from.

    Raises DataError where they are others now.
    """
    found: dict[int, str] = {}
    if not wanted or "source" not in bags.about or _gone(bags):
        return found
    for number, text in enumerate(_texts(bags.about)):
        if number in wanted:
            found[number] = text
            if len(found) == len(wanted):
                break
    order = sorted(wanted)
    again = bags.vectorizer.counts([found.get(number, "") for number in order])
    if (again != bags.counts[order]).nnz:
        raise DataError(
            f"the documents of '{bags.about['source']}' are not those that were counted; count them again"
        )
    return found
