"""``wordloom vectors similar|analogy|dot``: nearest words, analogies and dot products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument

from wordloom.cli import options
from wordloom.cli.options import argument, option
from wordloom.cli.vectors import output
from wordloom.errors import VectorError

if TYPE_CHECKING:
    from wordloom.vectors import KeyedVectors
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
