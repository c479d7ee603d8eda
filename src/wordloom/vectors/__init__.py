"""Static word vectors: train, open, query and evaluate them.

::

    corpus/      the vocabulary, phrases such as new_york, and the rules that turn text into words
    word2vec/    the trainer, its compiled kernels, and a trainer in torch for a GPU
    fasttext/    character n-grams, vectors for unseen words, and the trainer of the text classifier
    glove/       co-occurrence counts and the model with its kernels
    store/       KeyedVectors (gensim's interface), the questions it answers, and evaluation
    files/       word2vec, GloVe and fastText formats, our own folder, and conversion between them
    use/         a classifier, axes, maps and text embeddings

>>> from wordloom.vectors import load_vectors, save_word2vec
>>> wv = load_vectors("glove.6B.300d.txt.gz")                            # doctest: +SKIP
>>> wv.most_similar(positive=["king", "woman"], negative=["man"])        # doctest: +SKIP
>>> wv.evaluate_word_analogies("questions-words.txt").accuracy           # doctest: +SKIP
>>> save_word2vec(wv, "vectors.bin")  # gensim reads it                  # doctest: +SKIP

Each name below is imported from its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.lazy import lazy_names

__all__ = [
    "Agreement", "Analogies", "Axis", "Conversion", "Cooccurrences", "FastTextArgs",
    "FastTextClassifier", "FastTextModel", "FastTextVectors", "GloVe", "KeyedVectors",
    "LabelledVocabulary", "Phrases", "QuestionError", "Subwords", "TextEmbedder", "TokenVectors",
    "TrainingCorpus", "UnknownWordError", "WordMap", "WordRule", "WordTrainer", "WordVocabulary",
    "convert_vectors", "count_cooccurrences", "evaluate_word_analogies", "evaluate_word_pairs",
    "load_fasttext", "load_vectors", "load_word2vec", "open_vectors", "project", "read_word_counts",
    "save_fasttext", "save_vectors", "save_word2vec", "split_words", "word_map", "word_rule",
    "write_word_counts",
]  # fmt: skip

if TYPE_CHECKING:
    from wordloom.vectors.corpus.phrases import Phrases
    from wordloom.vectors.corpus.vocabulary import WordRule, WordVocabulary, split_words, word_rule
    from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary
    from wordloom.vectors.fasttext.model import FastTextArgs, FastTextModel
    from wordloom.vectors.fasttext.subwords import Subwords
    from wordloom.vectors.fasttext.vectors import FastTextVectors
    from wordloom.vectors.files.checkpoints import TokenVectors, open_vectors
    from wordloom.vectors.files.conversion import Conversion, convert_vectors
    from wordloom.vectors.files.fasttext import load_fasttext, save_fasttext
    from wordloom.vectors.files.formats import load_vectors, save_vectors
    from wordloom.vectors.files.word2vec_text import load_word2vec, save_word2vec
    from wordloom.vectors.files.words import read_word_counts, write_word_counts
    from wordloom.vectors.glove.cooccurrence import Cooccurrences, count_cooccurrences
    from wordloom.vectors.glove.model import GloVe
    from wordloom.vectors.store.evaluation import (
        Agreement,
        Analogies,
        evaluate_word_analogies,
        evaluate_word_pairs,
    )
    from wordloom.vectors.store.keyed import KeyedVectors
    from wordloom.vectors.store.refusals import QuestionError, UnknownWordError
    from wordloom.vectors.use.classifier import FastTextClassifier
    from wordloom.vectors.use.projections import Axis, WordMap, project, word_map
    from wordloom.vectors.use.text_embeddings import TextEmbedder
    from wordloom.vectors.word2vec.trainer import TrainingCorpus, WordTrainer

__getattr__, __dir__ = lazy_names(__name__, __file__)
