"""``wordloom embed`` with bags of words: sparse rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from wordloom.cli.embed.output import Output, output_file

Rows = tuple[list[str], Any]  # texts, CSR [B, V]


def holds_bags(folder: Path) -> bool:
    """Return whether ``folder`` holds bags of words, or a bag-of-words classifier."""
    return (folder / "vocabulary.json").exists()


def embed_bags(
    folder: Path, lines: Iterator[str], *, output: Output, normalize: bool, batch_size: int
) -> None:
    """Write the features of ``lines`` as scipy's .npz or as JSON lines, or cluster them."""
    from wordloom.data.bags.vectorizer import unit_rows
    from wordloom.vectors.use.text_embeddings import TextReport

    output.check_ending((".npz", ".jsonl"), "sparse rows")
    vectorizer, weigh = _opened(folder)
    report = TextReport(0, 0, 0, [])

    def batches() -> Iterator[Rows]:
        while batch := list(islice(lines, batch_size)):
            counted = vectorizer.count(batch)
            empty = [row for row, n in enumerate(counted.rows.getnnz(axis=1)) if not n]
            report.add(TextReport(len(batch), counted.terms, counted.unknown, empty))
            rows = weigh(counted.rows)
            yield batch, unit_rows(rows) if normalize else rows

    write = partial(_write, terms=vectorizer.terms)
    output.take(batches(), write, f"rows of {len(vectorizer):,} words", lambda: [str(report)])


def _opened(folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    """Return the vocabulary, and the function that turns counts into features."""
    if (folder / "bags.json").exists():
        from wordloom.data import DocumentBags

        bags = DocumentBags.from_pretrained(folder)
        return bags.vectorizer, bags.weigh
    from wordloom.run import TextClassifier, load_as

    classifier = load_as(TextClassifier, folder, device="cpu")
    return classifier.vectorizer, classifier.weigh


def _write(out: Path | None, batches: Iterable[Rows], terms: Sequence[str]) -> int:
    """Write the rows and return their number; a .npz file is written at the end."""
    written = 0
    with output_file(out) as file:
        if out is not None and out.suffix == ".npz":
            from scipy.sparse import csr_matrix, save_npz, vstack

            rows = vstack([csr_matrix((0, len(terms))), *(rows for _, rows in batches)], format="csr")
            save_npz(file, rows)
            return int(rows.shape[0])
        for texts, rows in batches:
            file.write("".join(_json_lines(texts, rows, terms)).encode())
            written += len(texts)
    return written


def _json_lines(texts: Sequence[str], rows: Any, terms: Sequence[str]) -> Iterator[str]:
    for text, begin, end in zip(texts, rows.indptr[:-1], rows.indptr[1:], strict=True):
        pairs = zip(rows.indices[begin:end].tolist(), rows.data[begin:end].tolist(), strict=True)
        fact = {"text": text, "words": {terms[column]: value for column, value in pairs}}
        yield json.dumps(fact, ensure_ascii=False) + "\n"
