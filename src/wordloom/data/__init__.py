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
    from wordloom.data.bags.documents import DocumentBags
    from wordloom.data.bags.vectorizer import BagVectorizer
    from wordloom.data.batches.causal import IGNORE, CausalBatch, CausalBatches
    from wordloom.data.batches.choices import ChoiceBatches, choice_tokens
    from wordloom.data.batches.contiguous import ContiguousBatch, ContiguousBatches
    from wordloom.data.batches.labelled import BagBatches, Bags, LabelBatch
    from wordloom.data.batches.masked import Marks, MaskedBatch, MaskedBatches
    from wordloom.data.batches.masking import Masker, Masking
    from wordloom.data.batches.next_sentence import SentencePairBatches
    from wordloom.data.batches.pairs import PairBatch, PairBatches
    from wordloom.data.batches.sequences import SequenceLabelBatches, Sequences
    from wordloom.data.batches.spans import AnswerWindow, AnswerWindows, question_windows
    from wordloom.data.batches.words import TaggedRows, WordLabelBatches, tagged_rows
    from wordloom.data.files.document import Document
    from wordloom.data.files.json import Record
    from wordloom.data.rows.choices import ChoiceRow, choice_rows
    from wordloom.data.rows.document_texts import texts_of
    from wordloom.data.rows.labelled import LabelledCorpus, LabelledRow, labelled_rows
    from wordloom.data.rows.labelled_documents import LabelledDocuments
    from wordloom.data.rows.ledger import RowLedger
    from wordloom.data.rows.pairs import Pair, PairCorpus
    from wordloom.data.rows.scored import ScoredCorpus, ScoredRow, scored_rows
    from wordloom.data.rows.squad import Answer, Question, questions
    from wordloom.data.rows.tagged import TaggedText, tag_labels, tagged_texts
    from wordloom.data.sets.catalogue import DATASETS
    from wordloom.data.sets.fetch import fetch, resolve
    from wordloom.data.sets.info import DatasetFile, DatasetInfo
    from wordloom.data.shards.ledger import Ledger
    from wordloom.data.shards.pairs import PairShards, prepare_pairs
    from wordloom.data.shards.prepare import Progress, prepare
    from wordloom.data.shards.storage import TokenShards
    from wordloom.data.text.corpus import Corpus
    from wordloom.data.text.documents import Piece
    from wordloom.data.text.reading import documents, pieces, records
    from wordloom.data.text.sentences import Sentences

_HOME = {
    "Answer": "rows.squad",
    "AnswerWindow": "batches.spans",
    "AnswerWindows": "batches.spans",
    "BagBatches": "batches.labelled",
    "BagVectorizer": "bags.vectorizer",
    "Bags": "batches.labelled",
    "CausalBatch": "batches.causal",
    "CausalBatches": "batches.causal",
    "ChoiceBatches": "batches.choices",
    "ChoiceRow": "rows.choices",
    "ContiguousBatch": "batches.contiguous",
    "ContiguousBatches": "batches.contiguous",
    "Corpus": "text.corpus",
    "DATASETS": "sets.catalogue",
    "DatasetFile": "sets.info",
    "DatasetInfo": "sets.info",
    "Document": "files.document",
    "DocumentBags": "bags.documents",
    "IGNORE": "batches.causal",
    "LabelBatch": "batches.labelled",
    "LabelledCorpus": "rows.labelled",
    "LabelledDocuments": "rows.labelled_documents",
    "LabelledRow": "rows.labelled",
    "Ledger": "shards.ledger",
    "Marks": "batches.masked",
    "MaskedBatch": "batches.masked",
    "MaskedBatches": "batches.masked",
    "Masker": "batches.masking",
    "Masking": "batches.masking",
    "Pair": "rows.pairs",
    "PairBatch": "batches.pairs",
    "PairBatches": "batches.pairs",
    "PairCorpus": "rows.pairs",
    "PairShards": "shards.pairs",
    "Piece": "text.documents",
    "Progress": "shards.prepare",
    "Question": "rows.squad",
    "Record": "files.json",
    "ScoredCorpus": "rows.scored",
    "ScoredRow": "rows.scored",
    "RowLedger": "rows.ledger",
    "SentencePairBatches": "batches.next_sentence",
    "Sentences": "text.sentences",
    "SequenceLabelBatches": "batches.sequences",
    "Sequences": "batches.sequences",
    "TaggedRows": "batches.words",
    "TaggedText": "rows.tagged",
    "TokenShards": "shards.storage",
    "WordLabelBatches": "batches.words",
    "choice_rows": "rows.choices",
    "choice_tokens": "batches.choices",
    "documents": "text.reading",
    "fetch": "sets.fetch",
    "labelled_rows": "rows.labelled",
    "pieces": "text.reading",
    "prepare": "shards.prepare",
    "prepare_pairs": "shards.pairs",
    "question_windows": "batches.spans",
    "questions": "rows.squad",
    "records": "text.reading",
    "resolve": "sets.fetch",
    "scored_rows": "rows.scored",
    "tag_labels": "rows.tagged",
    "tagged_rows": "batches.words",
    "tagged_texts": "rows.tagged",
    "texts_of": "rows.document_texts",
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
    "RowLedger",
    "ScoredCorpus",
    "ScoredRow",
    "SentencePairBatches",
    "Sentences",
    "SequenceLabelBatches",
    "Sequences",
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
