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

import inspect
from pathlib import Path
from typing import Any, TypeAlias

from llvmlite import ir  # type: ignore[import-untyped]
from numba import jit, types
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

# A packet begins with: ticket counter, number of shares, size of the work, counter of threads,
# address of all scratch, bytes of scratch for one thread
_HEADER = 6

_intrinsic: Any = intrinsic
_jit: Any = jit
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
        # without an entry for Python, which would contain all that is inlined once more
        self.function = _jit(no_cpython_wrapper=True, **function.targetoptions)(function.py_func)
        parameters = list(inspect.signature(function.py_func).parameters.values())[2:]
        self.all_kinds = [str(p.annotation) for p in parameters]
        self.kinds = [kind for kind in self.all_kinds if kind not in _PROVIDED]

        self._addresses: dict[str, int] = {}

    def address(self, stored: str) -> int:
        """Return the address of the machine code for elements ``stored`` as "float32" or "bfloat16".

        Each of the two is compiled when first asked for: a kernel takes seconds, and most runs need only one.
        """
        if stored not in self._addresses:
            self._addresses[stored] = self._compile(stored)
        return self._addresses[stored]

    def _compile(self, stored: str) -> int:
        body = self.function
        arguments = self._reader({"float32": types.float32, "bfloat16": types.uint16}[stored])

        def program(packet: Any) -> None:
            scratch = packet[4] + packet[5] * ticket(_second_counter(packet))
            share = ticket(packet)
            while share < packet[1]:
                start, stop = packet[2] * share // packet[1], packet[2] * (share + 1) // packet[1]
                body(start, stop, *arguments(packet, share, scratch))
                share = ticket(packet)

        source = Path(inspect.getfile(body.py_func))
        program.__name__ = program.__qualname__ = f"{source.stem}_{body.py_func.__name__}_{stored}"
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
        return builder.gep(args[0], [ir.Constant(ir.IntType(64), 3)])

    return _packet_type(_packet_type), generate


parallel = Kernel
