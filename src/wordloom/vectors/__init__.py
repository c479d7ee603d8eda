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
    "Agreement": "use.evaluation",
    "Analogies": "use.evaluation",
    "Axis": "use.axes",
    "Conversion": "files.conversion",
    "CooccurrenceProgress": "glove.cooccurrence",
    "CooccurrenceReport": "glove.cooccurrence",
    "Cooccurrences": "glove.cooccurrence",
    "Correlation": "use.evaluation",
    "FastTextArgs": "fasttext.model",
    "FastTextClassifier": "fasttext.classifier",
    "FastTextModel": "fasttext.model",
    "FastTextVectors": "fasttext.vectors",
    "GloVe": "glove.model",
    "GloVeProgress": "glove.model",
    "KeyedVectors": "store.keyed",
    "LabelScore": "fasttext.classifier",
    "LabelledVocabulary": "fasttext.labelled_text",
    "Phrases": "corpus.phrases",
    "QuestionError": "store.refusals",
    "Section": "use.evaluation",
    "Subwords": "fasttext.subwords",
    "SupervisedTrainer": "fasttext.trainer",
    "TextEmbedder": "use.text_embeddings",
    "TextReport": "use.text_embeddings",
    "TokenVectors": "files.checkpoints",
    "TorchWordTrainer": "word2vec.torch_trainer",
    "TrainingCorpus": "word2vec.trainer",
    "UnknownWordError": "store.refusals",
    "VocabularyReport": "corpus.vocabulary",
    "WordMap": "use.maps",
    "WordRule": "corpus.word_rules",
    "WordTrainer": "word2vec.trainer",
    "WordVocabulary": "corpus.vocabulary",
    "alias_table": "word2vec.sampling",
    "convert_vectors": "files.conversion",
    "count_cooccurrences": "glove.cooccurrence",
    "cut_lines": "fasttext.trainer",
    "evaluate_word_analogies": "use.evaluation",
    "evaluate_word_pairs": "use.evaluation",
    "huffman": "word2vec.sampling",
    "keep_probabilities": "word2vec.sampling",
    "load_fasttext": "files.fasttext",
    "load_vectors": "files.formats",
    "load_word2vec": "files.word2vec_text",
    "open_vectors": "files.checkpoints",
    "project": "use.axes",
    "save_fasttext": "files.fasttext",
    "save_vectors": "files.formats",
    "save_word2vec": "files.word2vec_text",
    "split_words": "corpus.vocabulary",
    "word_hashes": "fasttext.subwords",
    "word_map": "use.maps",
    "word_ngrams": "fasttext.subwords",
    "word_rule": "corpus.word_rules",
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
    from wordloom.vectors.corpus.phrases import Phrases
    from wordloom.vectors.corpus.vocabulary import VocabularyReport, WordVocabulary, split_words
    from wordloom.vectors.corpus.word_rules import WordRule, word_rule
    from wordloom.vectors.fasttext.classifier import FastTextClassifier, LabelScore
    from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary
    from wordloom.vectors.fasttext.model import FastTextArgs, FastTextModel
    from wordloom.vectors.fasttext.subwords import Subwords, word_hashes, word_ngrams
    from wordloom.vectors.fasttext.trainer import SupervisedTrainer, cut_lines
    from wordloom.vectors.fasttext.vectors import FastTextVectors
    from wordloom.vectors.files.checkpoints import TokenVectors, open_vectors
    from wordloom.vectors.files.conversion import Conversion, convert_vectors
    from wordloom.vectors.files.fasttext import load_fasttext, save_fasttext
    from wordloom.vectors.files.formats import load_vectors, save_vectors
    from wordloom.vectors.files.word2vec_text import load_word2vec, save_word2vec
    from wordloom.vectors.glove.cooccurrence import (
        CooccurrenceProgress,
        CooccurrenceReport,
        Cooccurrences,
        count_cooccurrences,
    )
    from wordloom.vectors.glove.model import GloVe, GloVeProgress
    from wordloom.vectors.store.keyed import KeyedVectors
    from wordloom.vectors.store.refusals import QuestionError, UnknownWordError
    from wordloom.vectors.use.axes import Axis, project
    from wordloom.vectors.use.evaluation import (
        Agreement,
        Analogies,
        Correlation,
        Section,
        evaluate_word_analogies,
        evaluate_word_pairs,
    )
    from wordloom.vectors.use.maps import WordMap, word_map
    from wordloom.vectors.use.text_embeddings import TextEmbedder, TextReport
    from wordloom.vectors.word2vec.sampling import alias_table, huffman, keep_probabilities
    from wordloom.vectors.word2vec.torch_trainer import TorchWordTrainer
    from wordloom.vectors.word2vec.trainer import TrainingCorpus, WordTrainer

__getattr__ = fetching(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
