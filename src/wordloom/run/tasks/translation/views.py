"""Views of a translation model: its attention, and its BLEU on texts of different lengths."""

from __future__ import annotations

from collections.abc import Sequence

from wordloom.data.rows.pairs import Pair
from wordloom.errors import GenerationError
from wordloom.evaluate import LengthBin, bleu_by_length
from wordloom.inspect import Alignment, alignment_map
from wordloom.run.models.translator import Translator
from wordloom.run.tasks.translation.scores import translated_by
from wordloom.text import Tokenizer

_END = "</s>"


def align(translator: Translator, source: str, target: str | None = None, *, beams: int = 5) -> Alignment:
    """Return the attention of ``translator`` while it writes ``target``, or its own translation.

    Both sides end in their end tokens.  Raises GenerationError for an empty or too long text, ConfigError for
    a model without attention.
    """
    if not source.strip():
        raise GenerationError("the source is empty, and nothing aligns with it; give a text")
    row = translator.source_rows([source])[0]
    if target is not None:
        ids = [*translator.text_tokenizer.encode_ids(target, specials="text"), translator.eos_id]
    else:
        ids = translator.search([row], beams=beams)[0][0].ids
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
