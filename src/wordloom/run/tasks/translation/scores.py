"""BLEU and chrF of translations, the loss of their references, and the attention of a translation model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wordloom.data import PairCorpus
from wordloom.data.rows.pairs import Pair
from wordloom.errors import CheckpointError, EvaluationError, GenerationError
from wordloom.evaluate import LengthBin, Score, Scores, bleu, bleu_by_length, chrf
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.score import RatioStatistics, loss_and_perplexity
from wordloom.generate import score_targets
from wordloom.inspect import Alignment, alignment_map
from wordloom.models import context_limit
from wordloom.recipe.data import TranslationData
from wordloom.run.models.tokenizers import Vocabularies
from wordloom.run.models.translator import Translator
from wordloom.run.prepare import recipe_of
from wordloom.run.tasks.translation.task import pair_corpus
from wordloom.text import Tokenizer
from wordloom.version import __version__

_END = "</s>"


def pairs_to_score(folder: Path, sources: Sequence[str], **reading: Any) -> Iterator[Pair]:
    """Return the pairs of files, tables or named sets; without ``sources`` the recipe's validation pairs.

    ``reading`` are settings of :class:`~wordloom.data.PairCorpus` that are not None; columns that it leaves
    open are those of the recipe.
    """
    recipe = recipe_of(folder)
    if not sources:
        if recipe is None:
            raise CheckpointError(f"{folder} has no recipe.toml that names validation pairs; give files")
        return pair_corpus(recipe).pairs("validation")
    if recipe is not None and isinstance(recipe.data, TranslationData) and not reading.get("targets"):
        d = recipe.data
        columns = {"source_column": d.source_column, "target_column": d.target_column, "header": d.header}
        reading = {name: value for name, value in columns.items() if value is not None} | reading
    return PairCorpus(sources=list(sources), validation_fraction=0.0, **reading).pairs()


def translation_scores(
    translator: Translator,
    pairs: Sequence[Pair],
    *,
    beams: int = 5,
    length_penalty: float = 1.0,
    max_new_tokens: int | None = None,
    batch_size: int = 32,
    tokenize: str = "13a",
    progress: Callable[[], None] | None = None,
) -> tuple[Scores, list[str]]:
    """Return loss and perplexity of the references, BLEU and chrF of the translations, and the translations.

    ``bleu`` distinguishes case and ``bleu_lowercase`` does not; ``tokenize`` is sacrebleu's.  The loss is in
    nats per token of the references, with their end tokens, given the sources.  It leaves out pairs with an
    empty side or a reference longer than the model reads; a note reports their number.  ``beams`` 1 is
    greedy.  ``progress`` is called after each translation.

    Raises EvaluationError without pairs, GenerationError for a source with more tokens than the model reads.
    """
    if not pairs:
        raise EvaluationError("there is no pair to score; give at least one")
    search = {"beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
    scores, counts, notes = _likelihood(translator, pairs, batch_size)
    lines = []
    for best in translator.translate(
        [pair.source for pair in pairs],
        batch_size=batch_size,
        place=lambda number: pairs[number - 1].place,
        **search,  # type: ignore[arg-type]
    ):
        lines.append(best[0].line)
        if progress is not None:
            progress()
    references = [pair.target for pair in pairs]
    text_scores = [
        bleu(lines, references, tokenize=tokenize),
        replace(bleu(lines, references, tokenize=tokenize, lowercase=True), name="bleu_lowercase"),
        chrf(lines, references),
    ]
    signed = [translated_by(translator, pairs, score, **search) for score in text_scores]
    return Scores((*scores, *signed), counts, tuple(notes)), lines


def translated_by(translator: Translator, pairs: Sequence[Pair], score: Score, **search: Any) -> Score:
    """Return ``score`` with the settings of the search and the hash of ``pairs`` in its signature."""
    how = "|".join(f"{name}:{value}" for name, value in search.items() if value is not None)
    how += f"|data:{_digest(pairs)}|dtype:{dtype_name(translator.model)}|wordloom:{__version__}"
    return replace(score, signature=f"{score.signature}|{how}")


def _likelihood(
    translator: Translator, pairs: Sequence[Pair], batch_size: int
) -> tuple[list[Score], dict[str, int | float], list[str]]:
    """Return loss and perplexity, the counts behind them, and notes."""
    longest, tokenizer = context_limit(translator.config), translator.text_tokenizer
    filled = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
    ids = tokenizer.encode_batch([pair.target for pair in filled], specials="text")
    scored_pairs = [i for i, batch in enumerate(ids) if longest is None or len(batch) < longest]
    targets = [[*map(int, ids[i]), translator.eos_id] for i in scored_pairs]
    sources = translator.source_rows(
        [filled[i].source for i in scored_pairs], [filled[i].place for i in scored_pairs]
    )
    nats, tokens = np.zeros(len(scored_pairs)), np.array([len(target) for target in targets], dtype=float)
    order = sorted(range(len(scored_pairs)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        memory = translator.read([sources[i] for i in batch])
        logprobs_of = score_targets(
            translator.model, memory, [targets[i] for i in batch], start_id=translator.start_id
        )
        nats[batch] = [-math.fsum(logprobs) for logprobs, _ in logprobs_of]
    unknown = sum(target.count(tokenizer.unk_id) for target in targets) if tokenizer.unk_id is not None else 0
    notes = [
        f"{count:,} {'pair' if count == 1 else 'pairs'} {why}: not in loss and perplexity"
        for count, why in (
            (len(pairs) - len(filled), "with an empty side"),
            (len(filled) - len(scored_pairs), f"whose target has more than {longest} tokens with its end"),
        )
        if count
    ]
    if unknown:
        share = unknown / tokens.sum()
        notes.append(
            f"{unknown:,} target tokens ({share:.2%}) are unknown, and guessing that is right there: compare "
            "loss and perplexity with the same tokenizer only"
        )
    statistics = RatioStatistics.of(nats, tokens)
    interval = statistics.interval() if scored_pairs else None
    settings = {
        "data": _digest(pairs),
        "tok": Vocabularies(translator.text_source_tokenizer, tokenizer).name,
        "pairs": len(scored_pairs),
        "dtype": dtype_name(translator.model),
        "ci": f"{len(scored_pairs)}-pairs" if interval else "no",
    }
    loss = statistics.ratio if scored_pairs else None
    why = "" if scored_pairs else "no pair has two sides that the model takes"
    scores = list(loss_and_perplexity(loss, interval, settings, note=why))
    counts = {"pairs": len(pairs), "target_tokens": int(tokens.sum()), "nats": float(nats.sum())}
    return scores, counts, notes


def _digest(pairs: Sequence[Pair]) -> str:
    """Return eight hex digits of the SHA-256 of the texts of both sides."""
    texts = "\n".join(f"{pair.source}\t{pair.target}" for pair in pairs)
    return hashlib.sha256(texts.encode()).hexdigest()[:8]


def align(
    translator: Translator, source: str, target: str | None = None, *, beams: int = 5, **search: Any
) -> Alignment:
    """Return the attention of ``translator`` while it writes ``target``, or its own translation.

    ``search`` are further settings of :meth:`Translator.search` for its own translation.

    Both sides end in their end tokens.  Raises GenerationError for an empty or too long text, ConfigError for
    a model without attention.
    """
    if not source.strip():
        raise GenerationError("the source is empty, and nothing aligns with it; give a text")
    row = translator.source_rows([source])[0]
    if target is not None:
        ids = [*translator.text_tokenizer.encode_ids(target, specials="text"), translator.eos_id]
    else:
        ids = translator.search([row], beams=beams, **search)[0][0].ids
    return alignment_map(
        translator.model,
        row,
        ids,
        start_id=translator.start_id,
        source=_names(translator.text_source_tokenizer, row, translator.source_eos_id),
        target=_names(translator.text_tokenizer, ids, translator.eos_id),
    )


def lengths(
    translator: Translator, pairs: Sequence[Pair], *, beams: int = 5, width: int = 5, batch_size: int = 32
) -> list[LengthBin]:
    """Return BLEU of the translations of ``pairs`` in bins of ``width`` words of their sources."""
    sources = [pair.source for pair in pairs]
    translations = [
        best[0].text for best in translator.translate(sources, beams=beams, batch_size=batch_size)
    ]
    bins = bleu_by_length(sources, translations, [pair.target for pair in pairs], width=width)
    return [part._replace(score=translated_by(translator, pairs, part.score, beams=beams)) for part in bins]


def _names(tokenizer: Tokenizer, ids: Sequence[int], end: int) -> list[str]:
    """Return each token as text; the end token has a short name."""
    return [_END if i == end else tokenizer.decode([i]) or tokenizer.id_to_token(i) for i in ids]
