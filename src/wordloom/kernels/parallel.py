"""Kernels whose work PyTorch's threads share, and how they receive their arguments from Python.

A kernel is an inlined function of a range of its work and of named arguments, whose annotations
say what they are::

    @parallel
    @exact
    def swiglu(start: int, stop: int, gate: Stored, up: Stored, y: Stored) -> None:
        for i in range(start, stop):
            store(y, i, silu(load(gate, i)) * load(up, i))

:func:`wordloom.kernels.programs.run` calls it as ``run("elementwise.swiglu", dtype, n, gate, up, y)``.  The
arguments travel as a packet of int64 numbers.  Threads take shares of the work in turn until none is left; a
share is the same range whatever the number of threads, so results repeat their bits.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any, TypeAlias

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from wordloom.kernels.machine_code import compiled_callback
from wordloom.kernels.memory import ticket

Stored: TypeAlias = Any  # pointer to a tensor's elements, float32 or bfloat16, as the caller chooses
Floats: TypeAlias = Any  # pointer to float32
Integers: TypeAlias = Any  # pointer to int64
Bytes: TypeAlias = Any  # pointer to bytes, such as bool
Share: TypeAlias = int  # the number of the share; the caller does not pass it
Element: TypeAlias = Any  # a zero of the type of stored elements, for ``like``; the caller does not pass it
Scratch: TypeAlias = int  # address of float32 memory of one thread; the caller passes only its size

# A packet begins with: ticket counter, number of shares, whether bfloat16 is stored, size of the work,
# counter of threads, address of all scratch, bytes of scratch for one thread
_HEADER = 7

_intrinsic: Any = intrinsic
_CPointer: Any = types.CPointer
_tuple: Any = types.Tuple
_packet_type: Any = _CPointer(types.int64)
_POINTERS = {"Floats": types.float32, "Integers": types.int64, "Bytes": types.uint8}
_PROVIDED = ("Share", "Scratch", "Element")
_NUMBERS = {"int": types.int64, "float": types.float32, "bool": types.boolean}


class Kernel:
    """An inlined function that threads run on shares of its work.

    Attributes:
        kinds: the annotations of the arguments that the caller passes, in order.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        parameters = list(inspect.signature(function.py_func).parameters.values())[2:]
        self.all_kinds = [str(p.annotation) for p in parameters]
        self.kinds = [kind for kind in self.all_kinds if kind not in _PROVIDED]

    @functools.cached_property
    def address(self) -> int:
        """The address of the kernel's machine code, which is compiled when first needed."""
        body, as_float32, as_bfloat16 = self.function, self._reader(types.float32), self._reader(types.uint16)

        def program(packet: Any) -> None:
            scratch = packet[5] + packet[6] * ticket(_second_counter(packet))
            share = ticket(packet)
            while share < packet[1]:
                start, stop = packet[3] * share // packet[1], packet[3] * (share + 1) // packet[1]
                if packet[2]:
                    body(start, stop, *as_bfloat16(packet, share, scratch))
                else:
                    body(start, stop, *as_float32(packet, share, scratch))
                share = ticket(packet)

        source = Path(inspect.getfile(self.function.py_func))
        program.__name__ = program.__qualname__ = f"{source.stem}_{self.function.py_func.__name__}"
        return int(compiled_callback(types.void(_packet_type), program, source).address)

    def _reader(self, stored: Any) -> Any:
        """Return an intrinsic that reads the kernel's arguments from a packet, as one tuple."""
        all_kinds = self.all_kinds
        pointers = {"Stored": stored, **_POINTERS}
        numbers = {"Element": stored, **_NUMBERS}
        argument_types = [
            _CPointer(pointers[kind]) if kind in pointers else numbers.get(kind, types.int64)
            for kind in all_kinds
        ]

        def read(_typing: Any, packet: Any, share: Any, scratch: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                at_packet, own_share, own_scratch = args
                values, place = [], _HEADER
                zero = context.get_constant(stored, 0)
                provided = {"Share": own_share, "Scratch": own_scratch, "Element": zero}
                for kind, wanted in zip(all_kinds, argument_types, strict=True):
                    if kind in provided:
                        values.append(provided[kind])
                        continue
                    number = builder.load(builder.gep(at_packet, [ir.Constant(ir.IntType(64), place)]))
                    values.append(_converted(builder, number, kind, context.get_value_type(wanted)))
                    place += 1
                return context.make_tuple(builder, signature.return_type, values)

            return _tuple(argument_types)(_packet_type, types.int64, types.int64), generate

        return _intrinsic(read)


def _converted(builder: Any, number: Any, kind: str, wanted: Any) -> Any:
    """Write code that converts an int64 of a packet to an argument."""
    if kind == "int":
        return number
    if kind == "bool":
        return builder.icmp_signed("!=", number, ir.Constant(ir.IntType(64), 0))
    if kind == "float":
        return builder.bitcast(builder.trunc(number, ir.IntType(32)), ir.FloatType())
    return builder.inttoptr(number, wanted)


@_intrinsic
def _second_counter(_typing: Any, packet: Any) -> Any:
    """Return the place of a packet's counter of threads."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [ir.Constant(ir.IntType(64), 4)])

    return _packet_type(_packet_type), generate


parallel = Kernel
