"""The index of a merged folder: which shares of a corpus it holds, and how they are joined.

::

    shards.json                     the index, written by ``wordloom data merge``
    tasks.json                      the settings of all tasks
    tokenizer/                      the tokenizer
    shares/00003-of-00064/          the share of task 3
        complete.json               written last: the share is complete
        train/, validation/         token shards (:mod:`wordloom.data.shards.storage`)

The index lists the folders of token shards in the order of their text.  It holds no tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from wordloom.data.ledgers import Ledger
from wordloom.errors import DataError

INDEX = "shards.json"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """One folder of token shards.

    Attributes:
        folder: its path in the merged folder.
        fingerprint: that of the token shards.
        tokens, documents: their numbers.
        checks: the hash of ``checks.bin``, or None without one.
        first_file: the number of its first file among all files.
        first_document: the documents of its first file in earlier shares.
    """

    folder: str
    fingerprint: str
    tokens: int
    documents: int
    checks: str | None
    first_file: int = 0
    first_document: int = 0

    def path(self, name: str) -> str:
        """Return the path of a file of the share in the merged folder."""
        return f"{self.folder}/{name}" if self.folder else name

    def arrays(self, itemsize: int) -> list[tuple[str, int, int]]:
        """Return the name, the bytes of a number and the count of each array; ids have ``itemsize`` bytes."""
        n = self.documents
        return [("tokens", itemsize, self.tokens), ("ends", 8, n), ("bytes", 8, n), ("origins", 8, 2 * n)]


@dataclass(frozen=True, kw_only=True)
class JoinedPart:
    """The shares of one part of the corpus, such as ``train``."""

    ledger: Ledger
    shares: Sequence[Share]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the fingerprints of the shares."""
        return hashlib.sha256("/".join(share.fingerprint for share in self.shares).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Index:
    """The index of a merged folder: the content of its file :data:`INDEX`.

    Attributes:
        tokenizer: the fingerprint of the tokenizer.
        vocab_size, eos_id, pad_id: those of the tokenizer.
        dtype: the type of the token ids.
        parts: the shares of each part of the corpus.
    """

    tokenizer: str
    vocab_size: int
    eos_id: int | None
    pad_id: int | None
    dtype: str
    parts: Mapping[str, JoinedPart]

    def as_json(self) -> str:
        """Return the text of the file."""
        values = {**asdict(self), "version": VERSION}
        for name, part in self.parts.items():
            values["parts"][name]["ledger"] = part.ledger.as_dict()
        return json.dumps(values, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str) -> Index:
        """Return the index in the ``text`` of a file; raise DataError if it is none."""
        try:
            values = json.loads(text)
            if (version := values.pop("version")) != VERSION:
                raise DataError(f"'{place}' is an index of version {version}, not {VERSION}; merge it again")
            values["parts"] = {
                name: JoinedPart(
                    ledger=Ledger.from_dict(part["ledger"]),
                    shares=[Share(**share) for share in part["shares"]],
                )
                for name, part in values["parts"].items()
            }
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"'{place}' is not an index of shards ({error}); merge the folder again"
            ) from error


def joined_ledger(ledgers: Iterable[Ledger], *, files: int) -> Ledger:
    """Return the sum of the ``ledgers`` of shares, which lie in ``files`` different files."""
    known = list(ledgers)
    dropped: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    for ledger in known:
        dropped.update(ledger.dropped)
        cut.update(ledger.cut)
    return Ledger(
        part=known[0].part,
        split=known[0].split,
        files=files,
        documents=sum(ledger.documents for ledger in known),
        tokens=sum(ledger.tokens for ledger in known),
        bytes=sum(ledger.bytes for ledger in known),
        dropped=dict(dropped),
        cut=dict(cut),
        notes=tuple(dict.fromkeys(note for ledger in known for note in ledger.notes)),
        unit=known[0].unit,
    )
