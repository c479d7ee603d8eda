"""Text to batches: documents -> token shards -> batches.  Targets, shifts and loss masks are made here only.

Importing this package imports neither torch nor numpy; each name below loads its module when first used.

Reading      :func:`documents`, :func:`pieces`, :func:`records`
Named sets   :data:`DATASETS`, :func:`fetch`, :func:`resolve`
A corpus     :class:`Corpus` (what to read, how to split it), :func:`prepare` -> :class:`TokenShards`
Batches      :class:`CausalBatches` -> :class:`CausalBatch`, with :data:`IGNORE` where nothing is scored;
             :class:`ContiguousBatches` for recurrent models, whose windows go on where those before ended
Classes      :func:`labelled_rows`, :class:`LabelledCorpus`; :class:`BagVectorizer` makes bags of words of
             texts, :class:`BagBatches` -> :class:`LabelBatch`
Documents    :func:`texts_of` what holds them; :class:`DocumentBags`: tf-idf and the nearest, without labels
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wordloom.data.batches import IGNORE, CausalBatch, CausalBatches
    from wordloom.data.catalogue import DATASETS
    from wordloom.data.contiguous import ContiguousBatch, ContiguousBatches
    from wordloom.data.corpus import Corpus
    from wordloom.data.datasets import DatasetFile, DatasetInfo, fetch, resolve
    from wordloom.data.document_bags import DocumentBags
    from wordloom.data.document_texts import texts_of
    from wordloom.data.label_batches import BagBatches, Bags, LabelBatch
    from wordloom.data.labels import LabelledCorpus, LabelledRow, labelled_rows
    from wordloom.data.ledger import Ledger
    from wordloom.data.readers import Document, Piece, Record, documents, pieces, records
    from wordloom.data.shards import Progress, prepare
    from wordloom.data.storage import TokenShards
    from wordloom.data.vectorizer import BagVectorizer

_HOME = {
    "BagBatches": "label_batches",
    "BagVectorizer": "vectorizer",
    "Bags": "label_batches",
    "CausalBatch": "batches",
    "CausalBatches": "batches",
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
    "LabelledRow": "labels",
    "Ledger": "ledger",
    "Piece": "readers",
    "Progress": "shards",
    "Record": "readers",
    "TokenShards": "storage",
    "documents": "readers",
    "fetch": "datasets",
    "labelled_rows": "labels",
    "pieces": "readers",
    "prepare": "shards",
    "records": "readers",
    "resolve": "datasets",
    "texts_of": "document_texts",
}

__all__ = [
    "DATASETS",
    "IGNORE",
    "BagBatches",
    "BagVectorizer",
    "Bags",
    "CausalBatch",
    "CausalBatches",
    "ContiguousBatch",
    "ContiguousBatches",
    "Corpus",
    "DatasetFile",
    "DatasetInfo",
    "Document",
    "DocumentBags",
    "LabelBatch",
    "LabelledCorpus",
    "LabelledRow",
    "Ledger",
    "Piece",
    "Progress",
    "Record",
    "TokenShards",
    "documents",
    "fetch",
    "labelled_rows",
    "pieces",
    "prepare",
    "records",
    "resolve",
    "texts_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wordloom.data' has no attribute {name!r}")
    return getattr(import_module(f"wordloom.data.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
