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

from typing import TYPE_CHECKING

from wordloom.lazy import lazy_names

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
    from wordloom.data.rows.labelled import LabelledCorpus, LabelledRow, labelled_rows
    from wordloom.data.rows.labelled_documents import LabelledDocuments
    from wordloom.data.rows.ledger import RowLedger
    from wordloom.data.rows.pairs import Pair, PairCorpus
    from wordloom.data.rows.scored import ScoredCorpus, ScoredRow, scored_rows
    from wordloom.data.rows.squad import Answer, Question, questions
    from wordloom.data.rows.tagged import TaggedText, tag_labels, tagged_texts
    from wordloom.data.rows.texts import texts_of
    from wordloom.data.sets.catalogue import DATASETS
    from wordloom.data.sets.fetch import fetch, resolve
    from wordloom.data.sets.info import DatasetFile, DatasetInfo
    from wordloom.data.shards.ledger import Ledger
    from wordloom.data.shards.pairs import PairShards, prepare_pairs
    from wordloom.data.shards.prepare import Progress, prepare
    from wordloom.data.shards.storage import TokenShards
    from wordloom.data.text.corpus import Corpus
    from wordloom.data.text.documents import Piece, documents, pieces, records
    from wordloom.data.text.sentences import Sentences

__all__ = [
    "DATASETS", "IGNORE", "Answer", "AnswerWindow", "AnswerWindows", "BagBatches", "BagVectorizer",
    "Bags", "CausalBatch", "CausalBatches", "ChoiceBatches", "ChoiceRow", "ContiguousBatch",
    "ContiguousBatches", "Corpus", "DatasetFile", "DatasetInfo", "Document", "DocumentBags", "LabelBatch",
    "LabelledCorpus", "LabelledDocuments", "LabelledRow", "Ledger", "Marks", "MaskedBatch",
    "MaskedBatches", "Masker", "Masking", "Pair", "PairBatch", "PairBatches", "PairCorpus", "PairShards",
    "Piece", "Progress", "Question", "Record", "RowLedger", "ScoredCorpus", "ScoredRow",
    "SentencePairBatches", "Sentences", "SequenceLabelBatches", "Sequences", "TaggedRows", "TaggedText",
    "TokenShards", "WordLabelBatches", "choice_rows", "choice_tokens", "documents", "fetch",
    "labelled_rows", "pieces", "prepare", "prepare_pairs", "question_windows", "questions", "records",
    "resolve", "scored_rows", "tag_labels", "tagged_rows", "tagged_texts", "texts_of",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, __file__)
