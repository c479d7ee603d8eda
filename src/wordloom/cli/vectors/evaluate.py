"""``wordloom vectors evaluate``: analogies, and correlation with human similarity scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.vectors import output
from wordloom.errors import DataError, VectorError, did_you_mean

if TYPE_CHECKING:
    from wordloom.vectors import Agreement, Analogies
    from wordloom.vectors.store.evaluation import Section

_ALSO_CALLED = {"questions-words": "google-analogies"}
_ANALOGIES = ("questions-words",)
_PAIRS = ("wordsim353", "simlex999")


def evaluate(
    vectors: output.VECTORS,
    analogies: list[str] | None = option(
        None,
        "Analogies: lines of four words under ': section' lines.  May be repeated.  "
        "[default: questions-words, without --pairs]",
        metavar="FILE|DATASET",
    ),
    pairs: list[str] | None = option(
        None,
        "Pairs: lines of two words and a score, separated by tabs.  May be repeated.  "
        "[default: wordsim353 and simlex999, without --analogies]",
        metavar="FILE|DATASET",
    ),
    restrict_vocab: int = option(
        300_000, "Use only this many words, from the start of the vocabulary.", min=1
    ),
    case_sensitive: bool = option(False, "Distinguish King from king.", "--case-sensitive"),
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Evaluate vectors by analogies and human similarity scores.

    Words are compared in upper case, unless --case-sensitive.
    """
    from wordloom.vectors import TokenVectors

    given = bool(analogies or pairs)
    questions = {name: _file(name) for name in analogies or (() if given else _ANALOGIES)}
    scored = {name: _file(name) for name in pairs or (() if given else _PAIRS)}
    wv = output.opened(vectors, rows, unicode_errors)
    if isinstance(wv, TokenVectors):
        wv = wv.words()
    settings: Any = {"restrict_vocab": restrict_vocab, "case_insensitive": not case_sensitive}
    accuracies = {name: wv.evaluate_word_analogies(path, **settings) for name, path in questions.items()}
    agreements, notes = {}, []
    for name, path in scored.items():
        try:
            agreements[name] = wv.evaluate_word_pairs(path, **settings)
        except VectorError as error:  # small vocabularies know few pairs; print the other results
            if pairs:
                raise
            notes.append(str(error))
    if json:
        output.print_json(
            vectors=str(vectors),
            words=len(wv),
            **settings,
            analogies={name: _analogies_facts(result) for name, result in accuracies.items()},
            pairs={name: _pairs_facts(result) for name, result in agreements.items()},
            notes=notes,
        )
        return
    console = Console()
    for name, result in accuracies.items():
        _print_analogies(console, name, result)
    if agreements:
        table = output.new_table("pairs", "Spearman", "Pearson", "compared", "skipped")
        for name, agreement in agreements.items():
            both = (agreement.spearman.statistic, agreement.pearson.statistic)
            numbers = ("undefined" if math.isnan(value) else f"{value:.4f}" for value in both)
            table.add_row(name, *numbers, f"{agreement.pairs:,}", f"{agreement.unknown:,}")
        console.print(table)
        console.print()
    spelling = "case sensitive" if case_sensitive else "compared in upper case"
    searched = f"{min(restrict_vocab, len(wv)):,} of {len(wv):,} words used, {spelling}"
    console.print(searched, highlight=False, markup=False, soft_wrap=True)
    output.print_notes(notes)


def _file(given: str) -> Path:
    """Return the path of a file or of a named data set."""
    from wordloom.data.sets.catalogue import DATASETS
    from wordloom.data.sets.fetch import local_files, names_dataset

    if Path(given).is_file():
        return Path(given)
    name = _ALSO_CALLED.get(given, given)
    if names_dataset(name):
        return local_files(name)[0]
    named = [*_ALSO_CALLED, *(known for known, info in DATASETS.items() if info.task.startswith("word "))]
    raise DataError(f"no file and no data set '{given}'; {did_you_mean(given, named)}")


def _print_analogies(console: Console, name: str, result: Analogies) -> None:
    table = output.new_table(name, "right", "asked", "skipped", "accuracy")
    *sections, total = result.sections
    for section in sections:
        table.add_row(section.name, *_counts([section]))
    grammar = [section for section in sections if section.name.startswith("gram")]
    meaning = [section for section in sections if not section.name.startswith("gram")]
    table.add_section()
    if grammar and meaning:  # the names of questions-words' syntactic sections
        table.add_row("semantic", *_counts(meaning))
        table.add_row("syntactic", *_counts(grammar))
    table.add_row("all", *_counts([total]), style="bold")
    console.print(table)
    console.print()


def _counts(sections: Sequence[Section]) -> list[str]:
    right, asked = sum(len(s.correct) for s in sections), sum(s.asked for s in sections)
    left_out = sum(s.skipped for s in sections)
    return [f"{right:,}", f"{asked:,}", f"{left_out:,}", f"{right / asked:.2%}" if asked else "none asked"]


def _analogies_facts(result: Analogies) -> dict[str, Any]:
    sections = [
        {"name": s.name, "correct": len(s.correct), "asked": s.asked, "skipped": s.skipped}
        for s in result.sections[:-1]  # the last is the total
    ]
    accuracy = result.accuracy if result.asked else None
    return {"accuracy": accuracy, "asked": result.asked, "skipped": result.skipped, "sections": sections}


def _pairs_facts(result: Agreement) -> dict[str, Any]:
    facts: dict[str, Any] = {"spearman": result.spearman.statistic, "pearson": result.pearson.statistic}
    facts = {name: None if math.isnan(value) else value for name, value in facts.items()}
    return {**facts, "compared": result.pairs, "oov": result.unknown / (result.pairs + result.unknown)}
