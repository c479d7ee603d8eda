"""Names and layouts of tensors, ours and theirs (transformers'): a complete, reversible table per family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wordloom.errors import CheckpointError


class Row(NamedTuple):
    """One stored tensor and the parameters of ours in it; ``{i}`` in a name stands for every layer.

    Attributes:
        theirs: the stored name.
        ours: our names; several parameters are joined along the output dimension, in this order.
        layout: "linear" is [out, in] as in ``nn.Linear``; "conv1d" is [in, out], as the GPTs were released;
            "row" is a bias [1, out].
        halves: the axis along which the stored tensor has our even places before the odd ones.
        zeros: the stored shape if our model may lack the parameter.  The stored tensor must then be zero, and
            ``ours`` is empty.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: str = "linear"
    halves: int | None = None
    zeros: tuple[int, ...] | None = None

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the stored tensor of our parts; a view if nothing is joined or reordered."""
        joined = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        if self.halves is not None:
            x = joined.movedim(self.halves, 0)
            joined = torch.cat([x[0::2], x[1::2]]).movedim(0, self.halves)
        if self.layout == "row":
            return joined[None]
        return joined.t() if self.layout == "conv1d" else joined  # .t() leaves a bias [out] as it is

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return our parts, of equal size, of a stored tensor; views if nothing is reordered.

        Raises CheckpointError if the tensor must be zero and is not.
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
        """Return the tensor to store for our ``state``."""
        if not self.ours:
            assert self.zeros is not None
            return next(iter(state.values())).new_zeros(self.zeros)
        return self.join([state[name].detach() for name in self.ours])


def layer_rows(theirs: str, *ours: str, layout: str = "linear", halves: int | None = None) -> tuple[Row, Row]:
    """Return the rows of a layer's weight and bias."""
    weight, bias = (
        Row(f"{theirs}.{kind}", tuple(f"{name}.{kind}" for name in ours), layout, halves)
        for kind in ("weight", "bias")
    )
    return weight, bias


class Ignored(NamedTuple):
    """Stored tensors that the model has no use for.

    ``pattern`` matches their names without prefix, and ``description`` is for messages.
    """

    pattern: str
    description: str


class Matched(NamedTuple):
    """The stored names of a folder, matched with a table."""

    found: dict[str, str]  # name in the table -> stored name
    duplicates: dict[str, str]  # stored name of a tied copy -> the original's name in the table
    ignored: dict[str, str]  # stored name -> description


@dataclass(frozen=True)
class Renaming:
    """The table of one model, with every layer's rows: which stored tensor holds which parameters.

    Attributes:
        rows: one for each stored tensor.
        prefixes: what the body's stored names may start with, the table's own prefix first.  Folders of a
            base model leave it off (``h.0...`` for ``transformer.h.0...``).
        tied: stored names of repeated tensors -> the names of the originals.
        tied_ours: our names of repeated tensors -> our names of the originals.
        ignored: stored tensors that the model has no use for.
        spellings: other ends of stored names -> the table's ends.
    """

    rows: tuple[Row, ...]
    prefixes: tuple[str, ...] = ("",)
    tied: Mapping[str, str] | None = None
    tied_ours: Mapping[str, str] | None = None
    ignored: tuple[Ignored, ...] = ()
    spellings: Mapping[str, str] | None = None

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
        """Return the table of a model whose parameters are called ``names``.

        ``tied`` holds our names of a repeated tensor and of its original, and ``copies`` maps further stored
        names to the originals they repeat.  Rows for parameters that the model lacks (biases, an untied head)
        are left out, or must be zero.

        Raises ValueError for a parameter in no row: a mistake in the family's table.
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

        Raises CheckpointError that lists missing and unknown names.
        """
        table = {row.theirs for row in self.rows}
        tied = self.tied or {}
        found: dict[str, str] = {}
        duplicates: dict[str, str] = {}
        ignored: dict[str, str] = {}
        unexpected: list[str] = []
        for name in stored:
            spelled = self._spelled(name)
            bare = self.bare(spelled)
            full = spelled if spelled in table or spelled in tied else self.prefixes[0] + bare
            if full in table:
                if full in found:
                    raise CheckpointError(
                        f"the tensor {full} is stored twice, as {found[full]} and as {name}"
                    )
                found[full] = name
            elif full in tied:
                duplicates[name] = tied[full]
            elif description := self.ignored_as(name):
                ignored[name] = description
            else:
                unexpected.append(name)
        for name, original in list(duplicates.items()):
            if original not in found:  # some writers keep the repeated name instead of the original
                found[original] = name
                del duplicates[name]
        if problem := _difference(table.difference(found), unexpected):
            raise CheckpointError(problem)
        return Matched(found, duplicates, ignored)

    def _spelled(self, name: str) -> str:
        """Return ``name`` with the table's spelling of its end."""
        for end, ours in (self.spellings or {}).items():
            if name.endswith(end):
                return name.removesuffix(end) + ours
        return name

    def bare(self, name: str) -> str:
        """Return ``name`` without the first prefix it starts with."""
        return next((name.removeprefix(p) for p in self.prefixes if name.startswith(p)), name)

    def ignored_as(self, name: str) -> str | None:
        """Return the description of a stored tensor that is ignored; None for any other name."""
        bare = self.bare(self._spelled(name))
        return next((known.description for known in self.ignored if re.fullmatch(known.pattern, bare)), None)

    def to_ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the stored tensors under our names, as views; a tied one under both names.

        Raises CheckpointError unless the names match exactly.
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
        """Return our tensors under the stored names, a tied one once; raise as :meth:`to_ours`."""
        wanted = {name for row in self.rows for name in row.ours}
        tied = self.tied_ours or {}
        if problem := _difference(wanted.difference(state), set(state).difference(wanted, tied)):
            raise CheckpointError(f"the state to save {problem}")
        for copy, original in tied.items():
            if copy in state:
                require_equal(state[copy], state[original], copy, original)
        return {row.theirs: row.stored(state) for row in self.rows}


def require_equal(copy: Tensor, original: Tensor, copy_name: str, original_name: str) -> None:
    """Raise CheckpointError unless a tied tensor and its copy are equal."""
    if copy.is_meta or copy is original:
        return
    if copy.shape != original.shape or not torch.equal(copy, original):
        raise CheckpointError(
            f"{copy_name} differs from {original_name}, yet the config ties them; "
            'set "tie_word_embeddings": false in config.json if both are meant'
        )


def _difference(missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """Return "lacks a, b and holds the unknown c", or ""."""
    kinds = (("lacks", sorted(missing)), ("holds the unknown", sorted(unexpected)))
    return " and ".join(f"{verb} {listed(names)}" for verb, names in kinds if names)


def listed(names: Iterable[str], *, most: int = 20) -> str:
    """Return "a, b, c", and the number of further names."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
