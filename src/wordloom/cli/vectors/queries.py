"""``wordloom vectors similar|analogy|dot|neighbours|axis``: nearest words, analogies, maps and named axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.usage import refuse, refuse_existing
from wordloom.cli.vectors import output
from wordloom.errors import VectorError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wordloom.vectors import Axis, KeyedVectors
    from wordloom.vectors.store.terms import Term


def similar(
    vectors: output.VECTORS,
    words: list[str] | None = argument(
        None, "Words, with signs and weights: 2*king -man.", metavar="[+|-]WORD..."
    ),
    positive: list[str] | None = option(None, "A word to be near, taken literally.  May be repeated."),
    negative: list[str] | None = option(None, "A word to be far from, taken literally.  May be repeated."),
    dot: bool = option(False, "Rank by the dot product instead of the cosine.", "--dot"),
    top_k: output.TOP_K = 10,
    restrict_vocab: output.RESTRICT = None,
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Find the words nearest to a word, or to a sum of several."""
    from wordloom.vectors.store.terms import Term, parse_terms, refuse_zero

    wv = output.opened(vectors, rows, unicode_errors)
    literal = [Term(word, 1.0, False) for word in positive or ()]
    literal += [Term(word, -1.0, True) for word in negative or ()]
    terms = [*(parse_terms(wv, words or ()) if words or not literal else ()), *literal]
    refuse_zero(wv, terms)
    asked: Any = [(term.word, term.weight) for term in terms]
    answers = wv.most_similar(asked, topn=top_k, restrict_vocab=restrict_vocab, dot=dot)
    _print_answers(wv, vectors, terms, answers, "dot product" if dot else "cosine", json=json)


def analogy(
    vectors: output.VECTORS,
    words: Annotated[
        list[str],
        Argument(metavar="WORD...", help="king man woman, for king - man + woman; or any sum with signs."),
    ],
    cosmul: bool = option(
        False, "Multiply and divide cosines (3CosMul) instead of adding vectors.", "--cosmul"
    ),
    top_k: output.TOP_K = 10,
    restrict_vocab: output.RESTRICT = None,
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Answer an analogy: king is to man as ? is to woman."""
    from wordloom.vectors.store.terms import analogy_terms, refuse_zero

    wv = output.opened(vectors, rows, unicode_errors)
    terms = analogy_terms(wv, words)
    if cosmul:
        if any(abs(term.weight) != 1 for term in terms):
            raise VectorError("--cosmul multiplies cosines and takes no weights; leave them out")
        near, far = ([term.word for term in terms if term.weight == sign] for sign in (1, -1))
        answers = wv.most_similar_cosmul(near, far, topn=top_k, restrict_vocab=restrict_vocab)
    else:
        refuse_zero(wv, terms)
        asked: Any = [(term.word, term.weight) for term in terms]
        answers = wv.most_similar(asked, topn=top_k, restrict_vocab=restrict_vocab)
    _print_answers(wv, vectors, terms, answers, "3CosMul" if cosmul else "cosine", json=json)


def dot(
    vectors: output.VECTORS,
    words: Annotated[list[str], Argument(metavar="WORD WORD...", help="Two words or more.")],
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Compare words by dot products and cosines, pair by pair."""
    wv = output.opened(vectors, rows, unicode_errors)
    if len(words) < 2:
        raise VectorError(f"a dot product takes two words, not {len(words)}; give another")
    by_word = {word: wv.get_vector(word) for word in words}
    lengths = {word: float((vector @ vector) ** 0.5) for word, vector in by_word.items()}
    pairs = [
        {"words": [a, b], "dot": float(by_word[a] @ by_word[b]), "cosine": wv.similarity(a, b)}
        for a, b in combinations(words, 2)
    ]
    notes = output.namesakes(wv, words)
    if json:
        output.print_json(vectors=str(vectors), pairs=pairs, lengths=lengths, notes=notes)
        return
    table = output.new_table("word", "word", "dot product", "cosine", "length", "length", left=2)
    for (a, b), pair in zip(combinations(words, 2), pairs, strict=True):
        numbers = (pair["dot"], pair["cosine"], lengths[a], lengths[b])
        table.add_row(output.shown(a), output.shown(b), *(f"{number:.4f}" for number in numbers))
    Console().print(table)
    output.print_notes(notes)


def _print_answers(
    wv: KeyedVectors,
    path: Path,
    terms: Sequence[Term],
    answers: list[tuple[str, float]],
    measure: str,
    *,
    json: bool,
) -> None:
    from wordloom.vectors.store.terms import expression

    notes = output.namesakes(wv, [term.word for term in terms])
    asked = expression(terms)
    if json:
        output.print_json(
            vectors=str(path),
            query=asked,
            terms=[{"word": term.word, "weight": term.weight} for term in terms],
            measure=measure,
            answers=[{"word": word, "score": score} for word, score in answers],
            notes=notes,
        )
        return
    table = output.new_table(asked, measure)
    for word, score in answers:
        table.add_row(output.shown(word), f"{score:.4f}")
    Console().print(table)
    output.print_notes(notes)


_BAR = 12  # characters from zero to the largest value

WORDS = Annotated[list[str], Argument(metavar="WORD...", help="Words, taken literally.")]


def neighbours(
    ctx: typer.Context,
    vectors: output.VECTORS,
    words: WORDS,
    top_k: int = option(8, "Number of neighbours of each word; 0: only the words.", min=0),
    plot: options.PLOT = None,
    force: options.FORCE = False,
    method: Literal["pca", "tsne"] = option("pca", "Projection of the map: principal components, or t-SNE."),
    seed: int = option(0, "Random seed of t-SNE."),
    restrict_vocab: output.RESTRICT = None,
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Find the nearest words of each word, and plot a map of them."""
    from wordloom.vectors import word_map

    if plot is None and not json:
        refuse(ctx, "without --plot or --json there is no map", "method", "seed")
    if method == "pca":
        refuse(ctx, "principal components are not random", "seed")
    refuse_existing(plot=plot, force=force)
    wv = output.opened(vectors, rows, unicode_errors)
    result = word_map(wv, words, topn=top_k, restrict_vocab=restrict_vocab, method=method, seed=seed)
    if plot is not None:
        from wordloom.inspect import draw_map

        draw_map(result, plot)
    notes = output.namesakes(wv, words)
    if json:
        output.print_json(
            vectors=str(vectors),
            neighbours={
                word: [{"word": near, "cosine": cosine} for near, cosine in nearest]
                for word, nearest in result.neighbours.items()
            },
            method=method,
            explained=result.explained,
            points=dict(zip(result.words, result.points.tolist(), strict=True)),
            plot=None if plot is None else str(plot),
            notes=notes,
        )
        return
    console = Console()
    for word, nearest in result.neighbours.items():
        table = output.new_table(output.shown(word).plain, "cosine")
        for near, cosine in nearest:
            table.add_row(output.shown(near), f"{cosine:.4f}")
        console.print(table)
        console.print()
    output.print_notes([*notes, *([f"plotted to {plot}"] if plot is not None else [])])


def axis(
    vectors: output.VECTORS,
    words: WORDS,
    toward: list[str] | None = option(
        None,
        "End of an axis, such as newborn.  A comma starts another axis, and + averages words: "
        "newborn,human or man+he.  May be repeated.",
    ),
    start: list[str] | None = option(
        None, "Start of an axis, written as in --toward; each needs a --to.", "--from"
    ),
    end: list[str] | None = option(None, "End of an axis with a --from.", "--to"),
    plot: options.PLOT = None,
    force: options.FORCE = False,
    rows: output.ROWS = None,
    unicode_errors: output.UNICODE_ERRORS = "strict",
    json: options.JSON = False,
) -> None:
    """Project words on axes, such as from male to female.

    The number is the cosine with the axis: 1 along it, 0 across it, -1 against it.
    """
    from wordloom.vectors import project
    from wordloom.vectors.use.projections import parse_axes

    refuse_existing(plot=plot, force=force)
    wv = output.opened(vectors, rows, unicode_errors)
    axes = parse_axes(wv, toward=toward or (), start=start or (), end=end or ())
    values = project(wv, words, axes)
    if plot is not None:
        from wordloom.inspect import draw_axes

        draw_axes(words, values, [axis.name for axis in axes], plot)
    notes = output.namesakes(wv, [*words, *(word for axis in axes for word in (*axis.away, *axis.toward))])
    if json:
        output.print_json(
            vectors=str(vectors),
            axes=[{"name": a.name, "from": list(a.away), "to": list(a.toward)} for a in axes],
            words=[{"word": word, "cosines": row} for word, row in zip(words, values.tolist(), strict=True)],
            plot=None if plot is None else str(plot),
            notes=notes,
        )
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("word", overflow="fold")
    for named in axes:
        table.add_column(Text(named.name), justify="right")
        table.add_column(no_wrap=True)
    console = Console()
    bar = _bars(console.width, words, axes, values)
    listed = list(zip(words, values.tolist(), strict=True))
    if len(axes) == 1:
        listed.sort(key=lambda row: -row[1][0])
    for word, row in listed:
        cells = [cell for value in row for cell in (f"{value:+.3f}", bar(value))]
        table.add_row(output.shown(word), *cells)
    console.print(table)
    output.print_notes([*notes, *([f"plotted to {plot}"] if plot is not None else [])])


def _bars(
    width: int, words: Sequence[str], axes: Sequence[Axis], values: NDArray[np.float32]
) -> Callable[[float], Text]:
    """Return a function that draws a number as a bar, to the left if it is negative.

    The bars fit into ``width`` characters.
    """
    most = float(abs(values).max()) or 1.0
    halves = 2 if values.min() < 0 else 1
    names = max(cell_len(word) + 2 for word in words)
    numbers = sum(max(6, *map(cell_len, axis.name.split())) for axis in axes)  # long names break at spaces
    room = width - names - numbers - 6 * len(axes) - 4
    length = min(_BAR, max(1, room // (halves * len(axes))))

    def bar(value: float) -> Text:
        filled = "█" * round(abs(value) / most * length)
        left, right = (filled.rjust(length), "") if value < 0 else (" " * length, filled)
        text = Text(left if halves == 2 else "", style="yellow")
        text.append("│", style="dim")
        return text.append(right, style="blue")

    return bar
