"""``wordloom tokenize train|encode|decode|report``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.errors import TokenizerError

if TYPE_CHECKING:
    from wordloom.text import Tokenizer, TokenizerReport, TrainingReport

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Tokenizer = Annotated[
    Path, Argument(help="The folder or file of a tokenizer: tokenizer.json, tokenizer.model, vocab.txt ...")
]
_Field = Annotated[str, Option(help="The field of .jsonl, .json and .parquet rows that holds the text.")]


@app.command()
def train(
    sources: options.SOURCES,
    out: Annotated[Path, Option(help="The folder to write.")],
    kind: str = option("bpe", "The kind of tokenizer: word, char, byte, bpe, wordpiece or unigram."),
    vocab_size: int | None = option(
        None,
        "The size of the vocabulary, with special tokens.  [default: 8192 for bpe, wordpiece and "
        "unigram, else all]",
    ),
    lower: bool = option(False, "Lower-case all text.", "--lower"),
    min_frequency: int | None = option(
        None, "How often a word, character or pair must occur.  [default: 2 for bpe and wordpiece, else 1]"
    ),
    special_token: list[str] | None = option(
        None, "A special token; its name says its role. Repeatable.  [default: those of the kind]"
    ),
    no_special_tokens: bool = option(False, "Add no special tokens, not even eos.", "--no-special-tokens"),
    split: str | None = option(
        None,
        "How to split text first. bpe, unigram: gpt2 or llama3. word: words or whitespace.  "
        "[default: gpt2; words]",
    ),
    limit_alphabet: int | None = option(
        None, "wordpiece, unigram: how many different characters to keep.  [default: 1000]"
    ),
    sample_mb: int = option(256, "How many MB of text to hold in memory; a larger corpus is sampled.", min=1),
    seed: int = option(0, "The random seed of the sample."),
    field: _Field = "text",
    separator: options.SEPARATOR = None,
    encoding_errors: options.ENCODING_ERRORS = "strict",
    force: bool = option(False, "Replace an existing tokenizer.", "--force"),
    json: options.JSON = False,
) -> None:
    """Train a tokenizer on text."""
    from wordloom.progress import tokenizer_progress
    from wordloom.text import Tokenizer

    there = [name for name in ("tokenizer.json", "tokenizer_config.json") if (out / name).exists()]
    if there and not force:
        raise TokenizerError(
            f"'{out}' has a tokenizer already ({there[0]}): choose another --out, or replace it with --force"
        )
    if special_token and no_special_tokens:
        raise TokenizerError("give --special-token or --no-special-tokens, not both")
    with tokenizer_progress() as show:
        tokenizer = Tokenizer.train(
            _texts(sources, field, separator, encoding_errors),
            kind=kind,
            vocab_size=vocab_size,
            lower=lower,
            min_frequency=min_frequency,
            special_tokens=() if no_special_tokens else special_token,
            split=split,
            limit_alphabet=limit_alphabet,
            sample_bytes=sample_mb << 20,
            seed=seed,
            progress=show,
        )
    tokenizer.save_pretrained(out)
    report = tokenizer.training_report
    assert report is not None
    if json:
        print(json_module.dumps({**report._asdict(), "out": str(out), "fingerprint": tokenizer.fingerprint}))
    else:
        _print_training(tokenizer, report, out)


@app.command()
def encode(
    tokenizer: _Tokenizer,
    text: Annotated[str, Argument(help="The text, or - for all of standard input.")],
    tokens: bool = option(False, "Print a line for each token: id, position, text.", "--tokens"),
    specials: options.SPECIALS = "refuse",
    json: options.JSON = False,
) -> None:
    """Encode a text and print its token ids."""
    from wordloom.text import Tokenizer

    loaded = Tokenizer.from_pretrained(tokenizer)
    content = _standard_input(loaded) if text == "-" else text
    if not (tokens or json):
        print(*loaded.encode_ids(content, specials=specials))
        return
    ids, offsets = loaded.encode(content, specials=specials)
    if json:
        pieces = [loaded.id_to_token(index) for index in ids]
        print(json_module.dumps({"ids": ids, "tokens": pieces, "offsets": offsets}))
        return
    for index, (start, end) in zip(ids, offsets, strict=True):
        piece = loaded.id_to_token(index) if loaded.token_bytes is None else loaded.bytes_of(index)
        shown = piece if isinstance(piece, str) else piece.decode(errors="backslashreplace")
        print(f"{index:>7}  {f'{start}-{end}':>11}  {shown!r}")


@app.command()
def decode(
    tokenizer: _Tokenizer,
    ids: Annotated[list[str], Argument(help="Ids, or - for ids on standard input.")],
    skip_special_tokens: bool = option(False, "Leave out special tokens.", "--skip-special-tokens"),
    json: options.JSON = False,
) -> None:
    """Decode token ids and print their text.

    A lossless tokenizer returns the text that was encoded, byte for byte.
    """
    from wordloom.text import Tokenizer

    loaded = Tokenizer.from_pretrained(tokenizer)
    content = sys.stdin.buffer.read().decode(errors="replace") if ids == ["-"] else " ".join(ids)
    numbers = [_id(word) for word in content.replace(",", " ").split()]
    if skip_special_tokens:
        numbers = [number for number in numbers if number not in loaded.special_ids]
    if json:
        print(json_module.dumps({"text": loaded.decode(numbers)}))
        return
    known = loaded.token_bytes is not None
    sys.stdout.buffer.write(loaded.decode_bytes(numbers) if known else loaded.decode(numbers).encode())
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()


@app.command()
def report(
    source: Annotated[str, Argument(help="The text to measure on: a file, folder, glob or -.")],
    tokenizers: Annotated[list[Path], Argument(help="Tokenizers, each a folder or file.")],
    field: _Field = "text",
    separator: options.SEPARATOR = None,
    encoding_errors: options.ENCODING_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Compare tokenizers side by side on one text."""
    from wordloom.text import Tokenizer, compare_tokenizers

    names = [path.name for path in tokenizers]
    loaded = {
        path.name if names.count(path.name) == 1 else str(path): Tokenizer.from_pretrained(path)
        for path in tokenizers
    }
    reports = compare_tokenizers(loaded, _texts([source], field, separator, encoding_errors))
    if json:
        print(json_module.dumps([report._asdict() for report in reports]))
    else:
        _print_reports(reports)


def _id(word: str) -> int:
    try:
        return int(word.replace("_", "?"))  # which Python takes between digits: 5_0 is nobody's id
    except ValueError:  # also for more digits than Python converts
        shown = word if len(word) <= 40 else f"{word[:40]}..."
        raise TokenizerError(f"{shown!r} is not an id; give whole numbers, such as 15 7 203") from None


def _texts(
    sources: list[str], field: str, separator: str | None, errors: Literal["strict", "replace"]
) -> Iterator[str]:
    from wordloom.data import pieces

    for piece in pieces(sources, field=field, separator=separator, encoding_errors=errors):
        assert isinstance(piece.text, str)
        yield piece.text


def _standard_input(tokenizer: Tokenizer) -> str | bytes:
    data = sys.stdin.buffer.read()
    if tokenizer.kind == "byte":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"standard input is not UTF-8 (byte {error.start}): convert it, or use a tokenizer of kind 'byte'"
        ) from None


def _print_training(tokenizer: Tokenizer, report: TrainingReport, out: Path) -> None:
    size = f" from {report.bytes_used / 1e6:,.1f} MB" if report.bytes_used else ""
    specials = " ".join(tokenizer.id_to_token(index) for index in sorted(tokenizer.special_ids))
    print(f"{report.kind} tokenizer of {report.vocab_size:,} entries{size}")
    print(f"special tokens: {specials or 'none'}")
    for note in report.notes:
        print(f"note: {note}")
    print(f"written to {out}; try: wordloom tokenize encode {out} 'Some text' --tokens")


def _print_reports(reports: list[TokenizerReport]) -> None:
    columns = ("kind", "entries", "bytes/token", "tokens/word", "unknown", "unused", "lost")
    table = plain_table(None, "tokenizer", *columns)
    table.collapse_padding, table.pad_edge = True, False  # fits 80 columns
    for report in reports:
        table.add_row(
            report.name,
            report.kind + ("*" if report.lossless else ""),
            f"{report.vocab_size:,}",
            f"{report.bytes_per_token:.3f}",
            f"{report.tokens_per_word:.3f}",
            f"{report.unknown_rate:.2%}",
            f"{report.unused_share:.1%}",
            f"{report.round_trip_failures / max(report.lines, 1):.1%}",
        )
    print_unwrapped(table)
    print(f"{reports[0].lines:,} lines; * is lossless; a line is lost if decoding does not restore it")
    for report in reports:
        if report.lossless and report.first_failure is not None:
            print(f"{report.name} is lossless but does not give back {report.first_failure!r}")
