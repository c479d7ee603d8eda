"""Names and layouts of tensors, ours and theirs: one total, reversible table per family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wordloom.errors import CheckpointError

__all__ = ["Ignored", "Matched", "Renaming", "Row", "listed"]


class Row(NamedTuple):
    """One stored tensor and ours that it holds; ``{i}`` in a name stands for every layer.

    ``layout``: "linear" is [out, in] as ``nn.Linear`` keeps it; "conv1d" is [in, out], as the GPTs were
    released; "row" is [1, out], of a bias.  Several of ours are joined along the output dimension, in the
    order given.  Along the axis ``halves`` theirs has the even places of ours before the odd ones.  ``zeros``
    is the shape in which they hold nothing but zeros where a model of ours lacks the parameter; ``ours`` is
    empty then.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: str = "linear"
    halves: int | None = None
    zeros: tuple[int, ...] | None = None

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Ours to theirs.  A view where nothing has to be joined or reordered."""
        joined = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        if self.halves is not None:
            x = joined.movedim(self.halves, 0)
            joined = torch.cat([x[0::2], x[1::2]]).movedim(0, self.halves)
        if self.layout == "row":
            return joined[None]
        return joined.t() if self.layout == "conv1d" else joined  # .t() leaves a bias [out] as it is

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Theirs to ours, as views where nothing is reordered; the parts of a joined tensor are of equal size
        in every family here.

        Raises CheckpointError where zeros are due and others stand.
        """
        if not self.ours:
            if not tensor.is_meta and tensor.any():
                raise CheckpointError(
                    f'{self.theirs} is not zero, and the settings under "wordloom" in config.json say that '
                    "the model has no such bias; take attention_bias and output_bias out of them"
                )
            return ()
        tensor = tensor.t() if self.layout == "conv1d" else tensor[0] if self.layout == "row" else tensor
        if self.halves is not None:
            x = tensor.movedim(self.halves, 0)
            tensor = torch.stack(x.chunk(2), dim=1).flatten(0, 1).movedim(0, self.halves)
        return tensor.chunk(len(self.ours)) if len(self.ours) > 1 else (tensor,)  # a scalar has no chunks

    def stored(self, state: Mapping[str, Tensor]) -> Tensor:
        """What their file holds of our ``state``."""
        if not self.ours:
            assert self.zeros is not None
            return next(iter(state.values())).new_zeros(self.zeros)
        return self.join([state[name].detach() for name in self.ours])


class Ignored(NamedTuple):
    """Names that real folders hold and no parameter answers to; ``pattern`` matches them bare."""

    pattern: str
    what: str


class Matched(NamedTuple):
    """How the names of a folder answer to a table."""

    found: dict[str, str]  # their name in the table -> the name it is stored under
    duplicates: dict[str, str]  # stored copy of a tied tensor -> the table's name of that tensor
    ignored: dict[str, str]  # stored name -> what it is


@dataclass(frozen=True)
class Renaming:
    """Which stored tensor is which parameter of ours, for one model: every row expanded, none left over.

    ``prefixes`` are what the body's names may start with: the table's own first, then other spellings;
    base-model folders leave it off (``h.0...`` for ``transformer.h.0...``).  ``tied``
    maps the stored names of repeated tensors to the one they repeat, and ``tied_ours`` is the pair of them
    that have names of ours.
    """

    rows: tuple[Row, ...]
    prefixes: tuple[str, ...] = ("",)
    tied: Mapping[str, str] | None = None
    tied_ours: Mapping[str, str] | None = None
    ignored: tuple[Ignored, ...] = ()
    spellings: Mapping[str, str] | None = None  # other ends of their names -> those of the table

    @classmethod
    def of(
        cls,
        table: Sequence[Row],
        *,
        names: Iterable[str],
        n_layers: int,
        prefixes: tuple[str, ...] = ("",),
        tied: tuple[str, str] | None = None,
        copies: Mapping[str, str] | None = None,
        ignored: Sequence[Ignored] = (),
        spellings: Mapping[str, str] | None = None,
    ) -> Renaming:
        """The table of a model whose parameters are ``names``; ``tied`` in our names, (repeated, original).

        ``copies`` are names of theirs for more of the same, and what they repeat.  Rows for parameters the
        model does not have (biases, an untied head) fall away, or hold zeros; a parameter that no row holds
        is a mistake in the table, so a ValueError.
        """
        wanted = set(names)
        if tied is not None:
            wanted.discard(tied[0])
        rows: list[Row] = []
        theirs_of: dict[str, str] = {}
        for template in table:
            for i in range(n_layers if "{i}" in template.theirs else 1):
                ours = tuple(name.replace("{i}", str(i)) for name in template.ours)
                theirs = template.theirs.replace("{i}", str(i))
                theirs_of.update(dict.fromkeys(ours, theirs))
                if wanted.issuperset(ours):
                    rows.append(template._replace(theirs=theirs, ours=ours))
                elif template.zeros is not None:
                    rows.append(template._replace(theirs=theirs, ours=()))
        uncovered = wanted.difference(name for row in rows for name in row.ours)
        if uncovered:
            raise ValueError(f"no row of the table holds {listed(uncovered)}")
        return cls(
            rows=tuple(rows),
            prefixes=prefixes,
            tied={**(copies or {}), **({theirs_of[tied[0]]: theirs_of[tied[1]]} if tied else {})},
            tied_ours={tied[0]: tied[1]} if tied else None,
            ignored=tuple(ignored),
            spellings=spellings,
        )

    def match(self, stored: Iterable[str]) -> Matched:
        """Find every row among the ``stored`` names.

        Raises CheckpointError listing what is missing and what nobody knows.
        """
        table = {row.theirs for row in self.rows}
        tied = self.tied or {}
        found: dict[str, str] = {}
        duplicates: dict[str, str] = {}
        ignored: dict[str, str] = {}
        unexpected: list[str] = []
        for name in stored:
            usual = self._usual(name)
            bare = self._bare(usual)
            full = usual if usual in table or usual in tied else self.prefixes[0] + bare
            if full in table:
                if full in found:
                    raise CheckpointError(
                        f"the tensor {full} is stored twice, as {found[full]} and as {name}"
                    )
                found[full] = name
            elif full in tied:
                duplicates[name] = tied[full]
            elif what := self.ignored_as(name):
                ignored[name] = what
            else:
                unexpected.append(name)
        for name, original in list(duplicates.items()):
            if original not in found:  # some writers keep the repeated name instead of the original
                found[original] = name
                del duplicates[name]
        missing = sorted(table.difference(found))
        if missing or unexpected:
            parts = [f"lacks {listed(missing)}"] * bool(missing)
            parts += [f"holds the unknown {listed(sorted(unexpected))}"] * bool(unexpected)
            raise CheckpointError(" and ".join(parts))
        return Matched(found, duplicates, ignored)

    def _usual(self, name: str) -> str:
        """``name`` with the table's spelling of its end."""
        for end, ours in (self.spellings or {}).items():
            if name.endswith(end):
                return name.removesuffix(end) + ours
        return name

    def _bare(self, name: str) -> str:
        """``name`` without the first prefix it starts with."""
        return next((name.removeprefix(p) for p in self.prefixes if name.startswith(p)), name)

    def ignored_as(self, name: str) -> str | None:
        """What a stored tensor is that the model has no use for; None for any other name."""
        bare = self._bare(self._usual(name))
        return next((known.what for known in self.ignored if re.fullmatch(known.pattern, bare)), None)

    def to_ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their tensors under our names, as views; raises CheckpointError unless the names answer exactly.

        A tied tensor stands under both of our names, as in ``state_dict()``.
        """
        matched = self.match(state)
        for copy, original in matched.duplicates.items():
            require_equal(state[copy], state[matched.found[original]], copy, matched.found[original])
        ours: dict[str, Tensor] = {}
        for row in self.rows:
            ours.update(zip(row.ours, row.split(state[matched.found[row.theirs]]), strict=True))
        for copy, original in (self.tied_ours or {}).items():
            ours[copy] = ours[original]
        return ours

    def to_theirs(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors under their names, a tied one once; raises CheckpointError as :meth:`to_ours`."""
        wanted = {name for row in self.rows for name in row.ours}
        tied = self.tied_ours or {}
        missing = sorted(wanted.difference(state))
        unexpected = sorted(set(state).difference(wanted, tied))
        if missing or unexpected:
            parts = [f"lacks {listed(missing)}"] * bool(missing)
            parts += [f"holds the unknown {listed(unexpected)}"] * bool(unexpected)
            raise CheckpointError(f"the state to save {' and '.join(parts)}")
        for copy, original in tied.items():
            if copy in state:
                require_equal(state[copy], state[original], copy, original)
        return {row.theirs: row.stored(state) for row in self.rows}


def require_equal(copy: Tensor, original: Tensor, copy_name: str, original_name: str) -> None:
    """Raise CheckpointError unless a tied tensor and its copy are the same."""
    if copy.is_meta or copy is original:
        return
    if copy.shape != original.shape or not torch.equal(copy, original):
        raise CheckpointError(
            f"{copy_name} differs from {original_name}, yet the config ties them; "
            'set "tie_word_embeddings": false in config.json if both are meant'
        )


def listed(names: Iterable[str], *, most: int = 20) -> str:
    """``a, b, c``, and how many more."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
