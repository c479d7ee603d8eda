"""The account of a corpus: how much was read, dropped, truncated and packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The account of one part of a corpus.

    Attributes:
        part: ``train``, ``validation`` or ``all``.
        split: a description of the split.
        files: the number of files read.
        documents, tokens, bytes: the documents kept, their tokens with end tokens, and the bytes of their
            text in UTF-8 (raw bytes in corpora of the byte tokenizer).
        unit: the word for one document.
        dropped, cut: the count of documents left out or truncated, by reason.
        packed_share: share of batch positions that hold a token, not padding; None before batching.
        notes: further lines.
    """

    part: str
    split: str
    files: int
    documents: int
    tokens: int
    bytes: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    packed_share: float | None = None
    notes: tuple[str, ...] = ()
    unit: str = "document"

    def lines(self) -> list[str]:
        """Return the ledger as lines of text."""
        per_token = f", {self.bytes / self.tokens:.2f} bytes per token" if self.tokens else ""
        lines = [
            f"{self.part}: {_count(self.documents, self.unit)} in {_count(self.files, 'file')}, "
            f"{_count(self.tokens, 'token')}, {_count(self.bytes, 'byte')}{per_token}",
            f"split: {self.split}",
            "dropped: " + (_reasons(self.dropped) or "nothing"),
            "truncated or divided: " + (_reasons(self.cut) or "nothing"),
        ]
        if self.packed_share is not None:
            lines.append(f"packed: {self.packed_share:.1%} of batch positions hold tokens")
        return lines + list(self.notes)

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger as plain JSON values."""
        return {**asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Ledger:
        """Return the ledger of :meth:`as_dict`."""
        return cls(**{**values, "notes": tuple(values["notes"])})


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _reasons(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
