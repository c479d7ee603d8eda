"""Find a word in texts, and compare its vectors between them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wordloom.errors import GenerationError
from wordloom.inspect.layers.words import WordInTexts, word_in_texts
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.text import Tokenizer


def compare_word(loaded: LanguageModel | TextEncoder, word: str, texts: Sequence[str]) -> WordInTexts:
    """Return the cosines between the vectors of ``word`` in each of N ``texts``, after each layer.

    The first occurrence in a text counts, and the vector of a word is that of its last token.

    Raises GenerationError for a text that lacks the word or is too long, and for fewer than two texts.
    """
    tokenizer, rows, places = loaded.text_tokenizer, list[list[int]](), list[int]()
    for text in texts:
        ids, place = place_of(tokenizer, text, word)
        if isinstance(loaded, TextEncoder):
            rows.append(loaded.framed(ids))
            places.append(place + 1)  # behind the first mark
        else:
            rows.append(tokenizer.prompt_ids(text, specials="text"))
            places.append(place + len(rows[-1]) - len(ids))  # behind a start token
    return word_in_texts(loaded.model, rows, places, word, texts)


def place_of(tokenizer: Tokenizer, text: str, word: str) -> tuple[list[int], int]:
    """Return the ids of ``text``, and where the last token of the first ``word`` in it stands.

    Letters and digits must not continue the word.  Raises GenerationError for an empty word, and for a text
    without the word or in which it has no token.
    """
    if not word.strip():
        raise GenerationError(f"the word {word!r} is empty; give one that occurs in every text")
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    behind = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    match = re.search(before + re.escape(word) + behind, text)
    if match is None:
        raise GenerationError(f"the word {word!r} does not occur in {text!r}")
    encoded = tokenizer.encode(text, specials="text")
    first, stop = match.span()
    inside = [at for at, (start, end) in enumerate(encoded.offsets) if start < stop and end > first]
    if not inside:
        raise GenerationError(f"the tokenizer gives no token for the word {word!r} in {text!r}")
    return list(encoded.ids), inside[-1]
