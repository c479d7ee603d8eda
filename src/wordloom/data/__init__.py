"""From text to batches: documents, token shards, batches.  Targets, shifts and loss masks are made only here.

Importing this package imports neither torch nor numpy; each name loads its module at its first use.

- Texts: :func:`documents`, :func:`pieces`, :func:`records`, :func:`texts_of`.
- Named data sets: :data:`DATASETS`, :func:`fetch`, :func:`resolve`.
- Running text: a :class:`Corpus` is what to read and how to divide it; :func:`prepare` writes its
  :class:`TokenShards`, which :class:`CausalBatches`, :class:`ContiguousBatches` (truncated back-propagation),
  :class:`MaskedBatches` and :class:`SentencePairBatches` read.
- Rows: :func:`labelled_rows`, :func:`scored_rows`, :func:`tagged_texts` (token classification),
  :func:`choice_rows` (multiple choice), :func:`questions` (SQuAD) and :class:`PairCorpus` (translation), each
  with batches of its own.
- Bags of words: :class:`BagVectorizer`, and :class:`DocumentBags` for texts without labels.
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
    from wordloom.data.files.json import Record
    from wordloom.data.files.source import Document
    from wordloom.data.ledgers import Ledger, RowLedger
    from wordloom.data.rows.choices import ChoiceRow, choice_rows
    from wordloom.data.rows.labelled import LabelledCorpus, LabelledRow, labelled_rows
    from wordloom.data.rows.labelled_documents import LabelledDocuments
    from wordloom.data.rows.pairs import Pair, PairCorpus
    from wordloom.data.rows.scored import ScoredCorpus, ScoredRow, scored_rows
    from wordloom.data.rows.squad import Answer, Question, questions
    from wordloom.data.rows.tagged import TaggedText, tag_labels, tagged_texts
    from wordloom.data.rows.texts import texts_of
    from wordloom.data.sets.catalogue import DATASETS
    from wordloom.data.sets.fetch import fetch, resolve
    from wordloom.data.sets.info import DatasetFile, DatasetInfo
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
