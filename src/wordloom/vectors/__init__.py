"""Static word vectors: a word is a row of numbers, whatever stands around it.

::

    vocabulary    the words of a corpus, counted in bounded memory
    phrases       words that keep company, joined
    sampling      which words are passed over, which stand in as negatives, the Huffman tree
    training      word2vec and fastText over token shards, portion by portion
    layout        what that lays out in memory
    kernels       ... compiled by numba; ``plain`` says the same in numpy
    keyed         KeyedVectors: words, vectors and questions by the names gensim's users know
    questions     ... what it is asked: nearest words, the odd one out; ``movers`` is Word Mover's Distance
    word_store    ... what it keeps; ``refusals`` are its errors, ``word_counts`` its files of counts
    formats       whatever holds vectors is opened here; a folder of ours that is memory-mapped
    word2vec_*    word2vec's text and GloVe's, word2vec's binary, which is memory-mapped too
    subwords      fastText's character n-grams and runs of words, by hash
    fasttext_*    vectors for words never seen, fastText's binary models, and the classifier among them
    torch_training    word2vec on a GPU: many windows at once
    cooccurrence  how often words stand near one another, counted in bounded memory
    glove         GloVe by AdaGrad; ``glove_twin`` says the same in numpy
    supervised    fastText's classifier over labelled text
    conversion    one format into another
    judging       analogies in bulk, and agreement with people on how similar words are
    checkpoints   the same questions of any model: its token rows
    terms         king - man + woman, as people write it
    directions    words on named directions
    maps          words and their neighbours in the plane
    word_rules    how a run made words of its text
    text_embeddings   vectors of texts: mean, sum, smooth inverse frequency

>>> from wordloom.vectors import load_vectors, save_word2vec
>>> wv = load_vectors("glove.6B.300d.txt.gz")                            # doctest: +SKIP
>>> wv.most_similar(positive=["king", "woman"], negative=["man"])        # doctest: +SKIP
>>> wv.evaluate_word_analogies("questions-words.txt").accuracy           # doctest: +SKIP
>>> save_word2vec(wv, "vectors.bin")  # gensim reads it                  # doctest: +SKIP

Each name below is fetched when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import fetching

_HOMES = {
    "Agreement": "judging",
    "Analogies": "judging",
    "Axis": "directions",
    "Conversion": "conversion",
    "CooccurrenceProgress": "cooccurrence",
    "CooccurrenceReport": "cooccurrence",
    "Cooccurrences": "cooccurrence",
    "Correlation": "judging",
    "FastTextArgs": "fasttext_model",
    "FastTextClassifier": "fasttext_classifier",
    "FastTextModel": "fasttext_model",
    "FastTextVectors": "fasttext_vectors",
    "GloVe": "glove",
    "GloVeProgress": "glove",
    "KeyedVectors": "keyed",
    "LabelScore": "fasttext_classifier",
    "LabelledVocabulary": "labelled_text",
    "Phrases": "phrases",
    "QuestionError": "refusals",
    "Section": "judging",
    "Subwords": "subwords",
    "SupervisedTrainer": "supervised",
    "TextEmbedder": "text_embeddings",
    "TextReport": "text_embeddings",
    "TokenVectors": "checkpoints",
    "TorchWordTrainer": "torch_training",
    "TrainingCorpus": "training",
    "UnknownWordError": "refusals",
    "VocabularyReport": "vocabulary",
    "WordMap": "maps",
    "WordRule": "word_rules",
    "WordTrainer": "training",
    "WordVocabulary": "vocabulary",
    "alias_table": "sampling",
    "convert_vectors": "conversion",
    "count_cooccurrences": "cooccurrence",
    "cut_lines": "supervised",
    "evaluate_word_analogies": "judging",
    "evaluate_word_pairs": "judging",
    "huffman": "sampling",
    "keep_probabilities": "sampling",
    "load_fasttext": "fasttext_format",
    "load_vectors": "formats",
    "load_word2vec": "word2vec_format",
    "open_vectors": "checkpoints",
    "project": "directions",
    "save_fasttext": "fasttext_format",
    "save_vectors": "formats",
    "save_word2vec": "word2vec_format",
    "split_words": "vocabulary",
    "word_hashes": "subwords",
    "word_map": "maps",
    "word_ngrams": "subwords",
    "word_rule": "word_rules",
}

__all__ = [
    "Agreement",
    "Analogies",
    "Axis",
    "Conversion",
    "CooccurrenceProgress",
    "CooccurrenceReport",
    "Cooccurrences",
    "Correlation",
    "FastTextArgs",
    "FastTextClassifier",
    "FastTextModel",
    "FastTextVectors",
    "GloVe",
    "GloVeProgress",
    "KeyedVectors",
    "LabelScore",
    "LabelledVocabulary",
    "Phrases",
    "QuestionError",
    "Section",
    "Subwords",
    "SupervisedTrainer",
    "TextEmbedder",
    "TextReport",
    "TokenVectors",
    "TorchWordTrainer",
    "TrainingCorpus",
    "UnknownWordError",
    "VocabularyReport",
    "WordMap",
    "WordRule",
    "WordTrainer",
    "WordVocabulary",
    "alias_table",
    "convert_vectors",
    "count_cooccurrences",
    "cut_lines",
    "evaluate_word_analogies",
    "evaluate_word_pairs",
    "huffman",
    "keep_probabilities",
    "load_fasttext",
    "load_vectors",
    "load_word2vec",
    "open_vectors",
    "project",
    "save_fasttext",
    "save_vectors",
    "save_word2vec",
    "split_words",
    "word_hashes",
    "word_map",
    "word_ngrams",
    "word_rule",
]

if TYPE_CHECKING:
    from wordloom.vectors.checkpoints import TokenVectors, open_vectors
    from wordloom.vectors.conversion import Conversion, convert_vectors
    from wordloom.vectors.cooccurrence import (
        CooccurrenceProgress,
        CooccurrenceReport,
        Cooccurrences,
        count_cooccurrences,
    )
    from wordloom.vectors.directions import Axis, project
    from wordloom.vectors.fasttext_classifier import FastTextClassifier, LabelScore
    from wordloom.vectors.fasttext_format import load_fasttext, save_fasttext
    from wordloom.vectors.fasttext_model import FastTextArgs, FastTextModel
    from wordloom.vectors.fasttext_vectors import FastTextVectors
    from wordloom.vectors.formats import load_vectors, save_vectors
    from wordloom.vectors.glove import GloVe, GloVeProgress
    from wordloom.vectors.judging import (
        Agreement,
        Analogies,
        Correlation,
        Section,
        evaluate_word_analogies,
        evaluate_word_pairs,
    )
    from wordloom.vectors.keyed import KeyedVectors
    from wordloom.vectors.labelled_text import LabelledVocabulary
    from wordloom.vectors.maps import WordMap, word_map
    from wordloom.vectors.phrases import Phrases
    from wordloom.vectors.refusals import QuestionError, UnknownWordError
    from wordloom.vectors.sampling import alias_table, huffman, keep_probabilities
    from wordloom.vectors.subwords import Subwords, word_hashes, word_ngrams
    from wordloom.vectors.supervised import SupervisedTrainer, cut_lines
    from wordloom.vectors.text_embeddings import TextEmbedder, TextReport
    from wordloom.vectors.torch_training import TorchWordTrainer
    from wordloom.vectors.training import TrainingCorpus, WordTrainer
    from wordloom.vectors.vocabulary import VocabularyReport, WordVocabulary, split_words
    from wordloom.vectors.word2vec_format import load_word2vec, save_word2vec
    from wordloom.vectors.word_rules import WordRule, word_rule

__getattr__ = fetching(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
