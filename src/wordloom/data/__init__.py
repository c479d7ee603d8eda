"""Text to batches: documents -> token shards -> batches.  Targets, shifts and loss masks are made here only.

Importing this package imports neither torch nor numpy; each name below loads its module when first used.

Reading      :func:`documents`, :func:`pieces`, :func:`records`
Named sets   :data:`DATASETS`, :func:`fetch`, :func:`resolve`
A corpus     :class:`Corpus` (what to read, how to split it), :func:`prepare` -> :class:`TokenShards`
Batches      :class:`CausalBatches` -> :class:`CausalBatch`, with :data:`IGNORE` where nothing is scored;
             :class:`ContiguousBatches` for recurrent models, whose windows go on where those before ended
Masked text  :class:`MaskedBatches` of windows, :class:`SentencePairBatches` of :class:`Sentences` ->
             :class:`MaskedBatch`; a :class:`Masker` hides tokens as :class:`Masking` says
Pairs        :class:`PairCorpus`, :func:`prepare_pairs` -> :class:`PairShards`; :class:`PairBatches` ->
             :class:`PairBatch` for sequence-to-sequence models
Classes      :func:`labelled_rows`, :class:`LabelledCorpus`; :class:`BagVectorizer` makes bags of words of
             texts, :class:`BagBatches` -> :class:`LabelBatch`, as :class:`SequenceLabelBatches` of tokens;
             :class:`LabelledDocuments`, a corpus of texts that stand after their labels
Scores       :func:`scored_rows` -> :class:`ScoredRow`, texts with a number; :class:`ScoredCorpus`
Tags         :func:`tagged_texts` -> :class:`TaggedText`, texts whose words have labels;
             :func:`tagged_rows` -> :class:`TaggedRows`, where each word's first token has its label;
             :class:`WordLabelBatches`
Choices      :func:`choice_rows` -> :class:`ChoiceRow`, questions with several answers to choose from;
             :func:`choice_tokens`, :class:`ChoiceBatches`
Questions    :func:`questions` -> :class:`Question` with its :class:`Answer`; :func:`question_windows` ->
             :class:`AnswerWindows`, rows of a question and a part of its text
Documents    :func:`texts_of` what holds them; :class:`DocumentBags`: tf-idf and the nearest, without labels
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wordloom.data.answer_windows import AnswerWindow, AnswerWindows, question_windows
    from wordloom.data.batches import IGNORE, CausalBatch, CausalBatches
    from wordloom.data.catalogue import DATASETS
    from wordloom.data.choice_batches import ChoiceBatches, choice_tokens
    from wordloom.data.choices import ChoiceRow, choice_rows
    from wordloom.data.contiguous import ContiguousBatch, ContiguousBatches
    from wordloom.data.corpus import Corpus
    from wordloom.data.datasets import DatasetFile, DatasetInfo, fetch, resolve
    from wordloom.data.document_bags import DocumentBags
    from wordloom.data.document_texts import texts_of
    from wordloom.data.label_batches import BagBatches, Bags, LabelBatch
    from wordloom.data.labelled_documents import LabelledDocuments
    from wordloom.data.labels import LabelledCorpus, LabelledRow, labelled_rows
    from wordloom.data.ledger import Ledger
    from wordloom.data.masked_batches import Marks, MaskedBatch, MaskedBatches
    from wordloom.data.masking import Masker, Masking
    from wordloom.data.pair_batches import PairBatch, PairBatches
    from wordloom.data.pair_shards import PairShards, prepare_pairs
    from wordloom.data.pairs import Pair, PairCorpus
    from wordloom.data.readers import Document, Piece, Record, documents, pieces, records
    from wordloom.data.scores import ScoredCorpus, ScoredRow, scored_rows
    from wordloom.data.sentence_pairs import SentencePairBatches
    from wordloom.data.sentences import Sentences
    from wordloom.data.sequence_batches import SequenceLabelBatches, Sequences
    from wordloom.data.shards import Progress, prepare
    from wordloom.data.squad import Answer, Question, questions
    from wordloom.data.storage import TokenShards
    from wordloom.data.tagged import TaggedText, tag_labels, tagged_texts
    from wordloom.data.vectorizer import BagVectorizer
    from wordloom.data.word_labels import TaggedRows, TagLedger, WordLabelBatches, tagged_rows

_HOME = {
    "Answer": "squad",
    "AnswerWindow": "answer_windows",
    "AnswerWindows": "answer_windows",
    "BagBatches": "label_batches",
    "BagVectorizer": "vectorizer",
    "Bags": "label_batches",
    "CausalBatch": "batches",
    "CausalBatches": "batches",
    "ChoiceBatches": "choice_batches",
    "ChoiceRow": "choices",
    "ContiguousBatch": "contiguous",
    "ContiguousBatches": "contiguous",
    "Corpus": "corpus",
    "DATASETS": "catalogue",
    "DatasetFile": "datasets",
    "DatasetInfo": "datasets",
    "Document": "readers",
    "DocumentBags": "document_bags",
    "IGNORE": "batches",
    "LabelBatch": "label_batches",
    "LabelledCorpus": "labels",
    "LabelledDocuments": "labelled_documents",
    "LabelledRow": "labels",
    "Ledger": "ledger",
    "Marks": "masked_batches",
    "MaskedBatch": "masked_batches",
    "MaskedBatches": "masked_batches",
    "Masker": "masking",
    "Masking": "masking",
    "Pair": "pairs",
    "PairBatch": "pair_batches",
    "PairBatches": "pair_batches",
    "PairCorpus": "pairs",
    "PairShards": "pair_shards",
    "Piece": "readers",
    "Progress": "shards",
    "Question": "squad",
    "Record": "readers",
    "ScoredCorpus": "scores",
    "ScoredRow": "scores",
    "SentencePairBatches": "sentence_pairs",
    "Sentences": "sentences",
    "SequenceLabelBatches": "sequence_batches",
    "Sequences": "sequence_batches",
    "TagLedger": "word_labels",
    "TaggedRows": "word_labels",
    "TaggedText": "tagged",
    "TokenShards": "storage",
    "WordLabelBatches": "word_labels",
    "choice_rows": "choices",
    "choice_tokens": "choice_batches",
    "documents": "readers",
    "fetch": "datasets",
    "labelled_rows": "labels",
    "pieces": "readers",
    "prepare": "shards",
    "prepare_pairs": "pair_shards",
    "question_windows": "answer_windows",
    "questions": "squad",
    "records": "readers",
    "resolve": "datasets",
    "scored_rows": "scores",
    "tag_labels": "tagged",
    "tagged_rows": "word_labels",
    "tagged_texts": "tagged",
    "texts_of": "document_texts",
}

__all__ = [
    "DATASETS",
    "IGNORE",
    "Answer",
    "AnswerWindow",
    "AnswerWindows",
    "BagBatches",
    "BagVectorizer",
    "Bags",
    "CausalBatch",
    "CausalBatches",
    "ChoiceBatches",
    "ChoiceRow",
    "ContiguousBatch",
    "ContiguousBatches",
    "Corpus",
    "DatasetFile",
    "DatasetInfo",
    "Document",
    "DocumentBags",
    "LabelBatch",
    "LabelledCorpus",
    "LabelledDocuments",
    "LabelledRow",
    "Ledger",
    "Marks",
    "MaskedBatch",
    "MaskedBatches",
    "Masker",
    "Masking",
    "Pair",
    "PairBatch",
    "PairBatches",
    "PairCorpus",
    "PairShards",
    "Piece",
    "Progress",
    "Question",
    "Record",
    "ScoredCorpus",
    "ScoredRow",
    "SentencePairBatches",
    "Sentences",
    "SequenceLabelBatches",
    "Sequences",
    "TagLedger",
    "TaggedRows",
    "TaggedText",
    "TokenShards",
    "WordLabelBatches",
    "choice_rows",
    "choice_tokens",
    "documents",
    "fetch",
    "labelled_rows",
    "pieces",
    "prepare",
    "prepare_pairs",
    "question_windows",
    "questions",
    "records",
    "resolve",
    "scored_rows",
    "tag_labels",
    "tagged_rows",
    "tagged_texts",
    "texts_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wordloom.data' has no attribute {name!r}")
    return getattr(import_module(f"wordloom.data.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
