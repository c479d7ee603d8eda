"""``wordloom embed`` with word vectors: the mean, sum or SIF-weighted mean of a text's words."""

from __future__ import annotations

import json as json_module
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wordloom.cli.vectors.output import opened
from wordloom.errors import VectorError

if TYPE_CHECKING:
    from wordloom.cli.embed.output import Output
    from wordloom.vectors import KeyedVectors, WordRule

Texts = Callable[[], Iterable[str]]  # reads the texts from the start


@dataclass(frozen=True, kw_only=True)
class WordSettings:
    """The options of ``wordloom embed`` for word vectors, by name."""

    method: Literal["mean", "sum", "sif"]
    split: Literal["words", "whitespace"] | None
    cased: bool | None
    no_phrases: bool
    rows: Literal["embedding", "head"] | None
    a: float
    counts: Path | None
    fit_on: str | None
    component: Path | None
    save_component: Path | None

    @classmethod
    def of(cls, options: dict[str, Any]) -> WordSettings:
        """Return the settings among the ``options`` of the command line."""
        values = {field.name: options[field.name] for field in fields(cls)}
        paths = {name: values[name] for name in ("counts", "component", "save_component")}
        return cls(**values | {name: None if path is None else Path(path) for name, path in paths.items()})

    @property
    def fits(self) -> bool:
        """True if the component that all texts share is estimated from texts."""
        return self.method == "sif" and self.component is None


def embed_words(
    path: Path,
    source: str,
    texts: Callable[[str], Iterable[str]],
    settings: WordSettings,
    *,
    output: Output,
    normalize: bool,
    batch_size: int,
) -> None:
    """Write the vectors of the texts that ``texts`` reads from ``source``, or cluster the texts."""
    from wordloom.vectors import TextEmbedder
    from wordloom.vectors.files.embedded_texts import (
        FORMATS,
        load_components,
        save_components,
        write_embeddings,
    )
    from wordloom.vectors.files.words import read_word_counts
    from wordloom.vectors.use.text_embeddings import TextReport

    output.check_ending(FORMATS, "vectors")
    wv = opened(path, settings.rows)
    rule, rule_notes = _word_rule(wv, path, settings)
    embedder = TextEmbedder(
        wv,
        settings.method,
        split=rule,
        a=settings.a,
        frequencies=None if settings.counts is None else read_word_counts(settings.counts),
        components=None if settings.component is None else load_components(settings.component),
    )
    fits_on_source = settings.fits and settings.fit_on is None
    with _readable(source, lambda: texts(source), twice=fits_on_source and output.clusters is None) as read:
        if settings.fits:
            fitted = read() if settings.fit_on is None else texts(settings.fit_on)
            embedder.fit(fitted, batch_size=batch_size)
            if settings.save_component is not None:
                assert embedder.components is not None
                save_components(settings.save_component, embedder.components)
        report = TextReport(0, 0, 0, [])

        def batches() -> Iterator[tuple[list[str], Any]]:
            stream = embedder.stream(read(), batch_size=batch_size, normalize_embeddings=normalize)
            for batch, vectors, batch_report in stream:
                report.add(batch_report)
                yield batch, vectors

        def write(out: Path | None, vectors: Iterable[tuple[list[str], Any]]) -> int:
            return write_embeddings(out or "-", vectors, wv.vector_size)

        def notes() -> list[str]:
            by_rank = ["the vectors have no counts: frequencies are estimated from ranks, by Zipf's law"]
            return [str(report), *rule_notes, *(by_rank if embedder.frequencies_from == "rank" else [])]

        output.take(batches(), write, f"vectors of {wv.vector_size} components", notes)


def _word_rule(wv: KeyedVectors, path: Path, settings: WordSettings) -> tuple[WordRule | None, list[str]]:
    """Return how texts are split into words, and notes about it; None splits by the tokenizer of a model.

    By default texts are split as in the run that made the vectors.
    """
    from wordloom.vectors import TokenVectors, WordRule, word_rule

    tokens = isinstance(wv, TokenVectors)
    if tokens and settings.split is None:
        if settings.cased is not None or settings.no_phrases:
            raise VectorError(
                "a model's tokenizer splits the texts: leave out --cased, --uncased and --no-phrases"
            )
        return None, []
    trained = None if tokens else word_rule(path)
    if settings.no_phrases and (trained is None or not trained.phrases):
        raise VectorError(f"{path} has no phrases: leave out --no-phrases")
    rule = trained or WordRule()
    if settings.split is not None:
        rule = replace(rule, split=settings.split)
    if settings.cased is not None:
        rule = replace(rule, lower=not settings.cased)
    if settings.no_phrases:
        rule = replace(rule, phrases=())
    if trained is None:
        return rule, []
    if rule == trained:
        return rule, [f"texts are split as in {path}: {rule}"]
    return rule, [f"texts are not split as in {path} ({trained}): {rule}"]


@contextmanager
def _readable(source: str, texts: Texts, *, twice: bool) -> Iterator[Texts]:
    """Yield a function that begins to read the texts; keep standard input in a file to read it ``twice``."""
    from wordloom.data.files.source import is_stdin

    if not is_stdin(source) or not twice:
        yield texts
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8", prefix="wordloom-texts-") as copy:
        copy.writelines(json_module.dumps(text) + "\n" for text in texts())

        def read() -> Iterator[str]:
            copy.seek(0)
            return map(json_module.loads, copy)

        yield read
