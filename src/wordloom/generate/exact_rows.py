"""Rows with the bits that each of them has alone, for continuous batching.

In a batch, a row differs by rounding from the same row alone: matrix products choose their kernel by the
number of rows.  Here the logits after a text depend on its tokens alone:

- A compiled program gives each of up to ``most_alike`` tokens the bits that it has alone.  More rows pass in
  groups, and a text can be read in any pieces.
- Without a program, a text is read in pieces that end at multiples of :data:`PIECE`, and each new token
  passes alone.

Each row has a slot: a cache of its own, which another row gets afterwards.  No row is copied when others join
or leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from wordloom.generate.fast import Accelerated, accelerate
from wordloom.generate.fast.adapters import Updates, merged_copy
from wordloom.kernels.threads import one_thread
from wordloom.models import RNN
from wordloom.nn.cache import SPARE_PLACES
from wordloom.nn.cache.layers import LayerState

PIECE = 64  # tokens of a text that are read at once, while other rows wait

States = tuple[np.ndarray, np.ndarray]  # h [L, R] and c [L, H or 0] of one row


class Saved(NamedTuple):
    """A copy of what a slot held: the keys and values [K, S, E], or the states, of each layer.

    ``truncates`` says whether a beginning of the ``length`` tokens can be restored.
    """

    length: int
    truncates: bool
    layers: tuple[tuple[Tensor, ...], ...]

    @property
    def n_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(part.nbytes for layer in self.layers for part in layer)


class Slot:
    """The cache of one row, which holds ``length`` tokens.

    ``adapter`` is the number of the adapter that the row uses, or -1.
    """

    def __init__(self) -> None:
        self.length, self.adapter = 0, -1
        self.cache: Any = None
        self.table: tuple[np.ndarray, np.ndarray] | None = None  # addresses [1, L, 2] and places [1, L, 3]
        self.states: States | None = None


class ExactRows(Protocol):
    """The rows of one model.

    Attributes:
        anywhere: whether a text can be read in any pieces without changing a bit.
        truncates: whether a beginning of a saved text can be restored.
        together: whether the texts of several rows are read faster together, token by token.
        slot_bytes: the bytes of a full slot.
    """

    anywhere: bool
    truncates: bool
    together: bool
    slot_bytes: int

    def new_slot(self) -> Slot:
        """Return an empty slot."""
        ...

    def clear(self, slot: Slot) -> None:
        """Empty ``slot`` for another row."""
        ...

    def read(self, slot: Slot, ids: Sequence[int]) -> Tensor:
        """Pass the next ``ids`` of a text, as many as :func:`next_piece` says; return the logits [V] after
        them, float32."""
        ...

    def read_together(self, slots: Sequence[Slot], ids: Sequence[Sequence[int]]) -> Tensor:
        """Pass the next tokens of several rows, as many of each; return the logits [R, V] after them."""
        ...

    def step(self, slots: Sequence[Slot], ids: Sequence[int]) -> Tensor:
        """Pass one new token of each row; return the logits [R, V] after them, float32."""
        ...

    def save(self, slot: Slot) -> Saved:
        """Return a copy of what ``slot`` holds."""
        ...

    def restore(self, slot: Slot, saved: Saved, length: int) -> None:
        """Let the empty ``slot`` hold the first ``length`` tokens of ``saved``: all, unless it truncates."""
        ...


def exact_rows(model: Any, room: int, *, fast: bool = True) -> ExactRows:
    """Return the rows of ``model``, with room for ``room`` tokens each.

    ``fast=False`` runs the modules where a compiled program could.
    """
    program: Any = accelerate(model) if fast else model
    if isinstance(program, Accelerated):
        if isinstance(model, RNN):
            return RecurrentProgramRows(program)
        if program.most_alike > 1:
            return ProgramRows(program, room)
    return ModuleRows(model, room)


def adapted_rows(
    model: Any, adapters: Mapping[str, Any], room: int, *, fast: bool = True
) -> dict[str | None, tuple[ExactRows, int]]:
    """Return the rows of ``model``, and of it with each adapter, with the number of the adapter in them.

    ``adapters`` are models with an active adapter, whose base is ``model``.  They share its rows, and its
    weights, where a compiled program has their updates.  Otherwise they are merged into weights of their own.
    """
    base = exact_rows(model, room, fast=fast)
    found: dict[str | None, tuple[ExactRows, int]] = {None: (base, -1)}
    for name, adapted in adapters.items():
        number = base.add_adapter(adapted) if isinstance(base, ProgramRows) else None
        if number is not None:
            found[name] = base, number
        else:
            own = merged_copy(adapted, next(model.parameters()).dtype)
            found[name] = exact_rows(own, room, fast=fast), -1
    return found


def next_piece(length: int, total: int) -> int:
    """Return how many of ``total`` tokens to read at once after the first ``length``."""
    return min(PIECE - length % PIECE, total - length)


class ProgramRows:
    """GPT, GPT-2 and LLaMA by their compiled programs."""

    anywhere, together = True, False

    def __init__(self, program: Any, room: int) -> None:
        self.program, self.room = program, room
        self.template = program.new_cache(1, room)
        self.truncates = all(layer.bound is None for layer in self.template.key_values)
        # more tokens at once would take the places of some in a window that the first of them sees
        self.most_read = program.most_alike if self.truncates else min(program.most_alike, SPARE_PLACES + 1)
        self.slot_bytes = _bytes(self.new_slot().cache)
        self.updates = Updates(*program.weights.matrices.shape)
        self._group: list[Slot] = []  # the slots of the last step, whose tables follow
        self._table: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))

    def add_adapter(self, model: Any) -> int | None:
        """Add the active adapter of ``model``; return its number, or None if the program does not have it."""
        return self.updates.add(model)

    def new_slot(self) -> Slot:
        slot = Slot()
        slot.cache = self.template.empty(1, self.room)
        slot.table = self.program.with_room(slot.cache, self.room)
        return slot

    def clear(self, slot: Slot) -> None:
        slot.length = 0

    @torch.inference_mode()
    @one_thread()  # PyTorch's threads would spin on cores that the next program needs
    def read(self, slot: Slot, ids: Sequence[int]) -> Tensor:
        hidden = torch.empty(0)
        for start in range(0, len(ids), self.most_read):
            part = torch.tensor(ids[start : start + self.most_read])
            rows = np.zeros((len(part), 2), dtype=np.int64)
            rows[:, 1] = np.arange(slot.length, slot.length + len(part))
            assert slot.table is not None
            adapters = np.full(len(part), slot.adapter)
            hidden = self.program.pass_tokens(part, rows, *slot.table, adapters, self.updates.table)
            slot.length += len(part)
        logits: Tensor = self.program.lm_head(hidden[-1:])[0].clone()
        return logits

    def read_together(self, slots: Sequence[Slot], ids: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([self.read(slot, some) for slot, some in zip(slots, ids, strict=True)])

    @torch.inference_mode()
    @one_thread()
    def step(self, slots: Sequence[Slot], ids: Sequence[int]) -> Tensor:
        logits = torch.empty(len(slots), self.program.config.vocab_size)
        for some in _groups(len(slots), self.program.most_alike):
            group = list(slots[some])
            if group != self._group:
                addresses, places = zip(*(slot.table for slot in group if slot.table), strict=True)
                self._group, self._table = group, (np.concatenate(addresses), np.concatenate(places))
            rows = np.array([(row, slot.length) for row, slot in enumerate(group)], dtype=np.int64)
            adapters = np.array([slot.adapter for slot in group])
            hidden = self.program.pass_tokens(
                torch.tensor(ids[some]), rows, *self._table, adapters, self.updates.table
            )
            logits[some] = self.program.lm_head(hidden)
            for slot in group:
                slot.length += 1
        return logits

    def save(self, slot: Slot) -> Saved:
        return _saved(slot, self.truncates)

    def restore(self, slot: Slot, saved: Saved, length: int) -> None:
        for layer, stored in zip(slot.cache.key_values, saved.layers, strict=True):
            for ours, theirs in zip((layer.keys, layer.values), stored, strict=True):
                n = min(length, theirs.shape[1]) if saved.truncates else theirs.shape[1]
                ours[0, :, :n] = theirs[:, :n]
        slot.length = length


class RecurrentProgramRows:
    """Recurrent models by their compiled program."""

    anywhere, truncates, together = True, False, True

    def __init__(self, program: Any) -> None:
        self.program = program
        program.new_cache(1, 0)  # which reads the weights
        self.slot_bytes = sum(part.nbytes for part in program.new_states(1))

    def new_slot(self) -> Slot:
        slot = Slot()
        self.clear(slot)
        return slot

    def clear(self, slot: Slot) -> None:
        h, c = self.program.new_states(1)
        slot.length, slot.states = 0, (np.zeros_like(h[:, 0]), np.zeros_like(c[:, 0]))

    def read(self, slot: Slot, ids: Sequence[int]) -> Tensor:
        return self.read_together([slot], [ids])[0]

    def step(self, slots: Sequence[Slot], ids: Sequence[int]) -> Tensor:
        return self.read_together(slots, [[token] for token in ids])

    @torch.inference_mode()
    @one_thread()
    def read_together(self, slots: Sequence[Slot], ids: Sequence[Sequence[int]]) -> Tensor:
        logits = torch.empty(len(slots), self.program.config.vocab_size)
        for some in _groups(len(slots), self.program.most_rows):
            group, states = slots[some], _stacked(slots[some])
            for tokens in torch.tensor(ids[some]).T.contiguous():
                states = self.program.pass_to_states(tokens, states)
            h, c = states
            for row, slot in enumerate(group):
                slot.states = h[:, row], c[:, row]
                slot.length += len(ids[0])
            if self.program.model.output_proj is None:
                outputs = self.program.output(states)
            else:  # row by row: a projection by PyTorch has other bits for another number of rows
                outputs = torch.cat([self.program.output(_stacked([slot])) for slot in group])
            logits[some] = self.program.lm_head(outputs)
        return logits

    def save(self, slot: Slot) -> Saved:
        assert slot.states is not None
        states = tuple(torch.from_numpy(part.copy()) for part in slot.states)
        return Saved(slot.length, False, (states,))

    def restore(self, slot: Slot, saved: Saved, length: int) -> None:
        h, c = saved.layers[0]
        slot.states, slot.length = (h.numpy(), c.numpy()), length


class ModuleRows:
    """Any causal model by its modules."""

    anywhere, together = False, False

    def __init__(self, model: Any, room: int) -> None:
        self.model, self.room = model, room
        self.device = next(model.parameters()).device
        slot = self.new_slot()
        self.read(slot, [0])
        self.slot_bytes = _bytes(slot.cache)
        self.truncates = not any(
            isinstance(layer, LayerState) or layer.bound is not None for layer in slot.cache.layers
        )

    def new_slot(self) -> Slot:
        slot = Slot()
        self.clear(slot)
        return slot

    def clear(self, slot: Slot) -> None:
        slot.length, slot.cache = 0, self.model.new_cache(1, self.room)

    @torch.inference_mode()
    def read(self, slot: Slot, ids: Sequence[int]) -> Tensor:
        tokens = torch.tensor([list(ids)], device=self.device)
        hidden = self.model.hidden(tokens, cache=slot.cache)[:, -1]
        slot.length += len(ids)
        logits: Tensor = self.model.lm_head(hidden)[0].float()
        return logits

    def read_together(self, slots: Sequence[Slot], ids: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([self.read(slot, some) for slot, some in zip(slots, ids, strict=True)])

    def step(self, slots: Sequence[Slot], ids: Sequence[int]) -> Tensor:
        return self.read_together(slots, [[token] for token in ids])

    def save(self, slot: Slot) -> Saved:
        return _saved(slot, self.truncates)

    @torch.inference_mode()
    def restore(self, slot: Slot, saved: Saved, length: int) -> None:
        for layer, stored in zip(slot.cache.layers, saved.layers, strict=True):
            if isinstance(layer, LayerState):
                layer.state = stored or None
                continue
            layer.grow(stored[0][None], min(self.room, saved.length))
            for ours, theirs in zip((layer.keys, layer.values), stored, strict=True):
                n = min(length, theirs.shape[1]) if saved.truncates else theirs.shape[1]
                ours[0, :, :n] = theirs[:, :n]
        slot.cache.set_lengths(torch.tensor([length]))
        slot.length = length


def _groups(n: int, most: int) -> Iterator[slice]:
    return (slice(start, min(n, start + most)) for start in range(0, n, most))


def _stacked(slots: Sequence[Slot]) -> States:
    """Return the states of all rows: [L, B, R] and [L, B, H or 0]."""
    h, c = zip(*(slot.states for slot in slots if slot.states is not None), strict=True)
    return np.stack(h, axis=1), np.stack(c, axis=1)


def _saved(slot: Slot, truncates: bool) -> Saved:
    layers: list[tuple[Tensor, ...]] = []
    for layer in slot.cache.layers:
        if isinstance(layer, LayerState):
            layers.append(tuple(part.clone() for part in layer.state or ()))
        else:
            stored = (layer.keys, layer.values)
            layers.append(tuple(part[0, :, : slot.length].clone() for part in stored if part is not None))
    return Saved(slot.length, truncates, tuple(layers))


def _bytes(cache: Any) -> int:
    parts: list[Tensor] = []
    for layer in cache.layers:
        parts += (layer.state or ()) if isinstance(layer, LayerState) else (layer.keys, layer.values)
    return sum(part.nbytes for part in parts)
