"""Static word vectors: a word is a row of numbers, whatever stands around it.

::

    vocabulary    the words of a corpus, counted in bounded memory
    sampling      which words are passed over, which stand in as negatives, the Huffman tree
    keyed         KeyedVectors: nearest words, analogies, the odd one out, by the names gensim's users know
    formats       word2vec's text and binary, GloVe's text, and a folder of ours that is memory-mapped
    cooccurrence  how often words stand near one another, counted in bounded memory
    glove         GloVe, trained on these counts
    judging       analogies in bulk, and agreement with people on how similar words are

>>> from wordloom.vectors import load_vectors, save_word2vec
>>> wv = load_vectors("glove.6B.300d.txt.gz")                            # doctest: +SKIP
>>> wv.most_similar(positive=["king", "woman"], negative=["man"])        # doctest: +SKIP
>>> wv.evaluate_word_analogies("questions-words.txt").accuracy           # doctest: +SKIP
>>> save_word2vec(wv, "vectors.bin")  # gensim reads it                  # doctest: +SKIP

Each name below is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Agreement": "judging",
    "Analogies": "judging",
    "CooccurrenceProgress": "cooccurrence",
    "CooccurrenceReport": "cooccurrence",
    "Cooccurrences": "cooccurrence",
    "GloVe": "glove",
    "GloVeProgress": "glove",
    "KeyedVectors": "keyed",
    "Section": "judging",
    "UnknownWordError": "keyed",
    "VocabularyReport": "vocabulary",
    "WordVocabulary": "vocabulary",
    "alias_table": "sampling",
    "count_cooccurrences": "cooccurrence",
    "evaluate_word_analogies": "judging",
    "evaluate_word_pairs": "judging",
    "huffman": "sampling",
    "keep_probabilities": "sampling",
    "load_vectors": "formats",
    "load_word2vec": "formats",
    "save_vectors": "formats",
    "save_word2vec": "formats",
    "split_words": "vocabulary",
}

__all__ = [
    "Agreement",
    "Analogies",
    "CooccurrenceProgress",
    "CooccurrenceReport",
    "Cooccurrences",
    "GloVe",
    "GloVeProgress",
    "KeyedVectors",
    "Section",
    "UnknownWordError",
    "VocabularyReport",
    "WordVocabulary",
    "alias_table",
    "count_cooccurrences",
    "evaluate_word_analogies",
    "evaluate_word_pairs",
    "huffman",
    "keep_probabilities",
    "load_vectors",
    "load_word2vec",
    "save_vectors",
    "save_word2vec",
    "split_words",
]

if TYPE_CHECKING:
    from wordloom.vectors.cooccurrence import (
        CooccurrenceProgress,
        CooccurrenceReport,
        Cooccurrences,
        count_cooccurrences,
    )
    from wordloom.vectors.formats import load_vectors, load_word2vec, save_vectors, save_word2vec
    from wordloom.vectors.glove import GloVe, GloVeProgress
    from wordloom.vectors.judging import (
        Agreement,
        Analogies,
        Section,
        evaluate_word_analogies,
        evaluate_word_pairs,
    )
    from wordloom.vectors.keyed import KeyedVectors, UnknownWordError
    from wordloom.vectors.sampling import alias_table, huffman, keep_probabilities
    from wordloom.vectors.vocabulary import VocabularyReport, WordVocabulary, split_words


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wordloom.vectors' has no attribute {name!r}")
    value = getattr(import_module(f"wordloom.vectors.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
