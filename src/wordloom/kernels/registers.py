"""Vector registers: code that the kernels of products and of rows write instruction by instruction.

They exist where plain loops, vectorized by the compiler, spill registers or stall.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wordloom.kernels.memory import stored_as, widened

_features = dict(llvm.get_host_cpu_features())
LANES = 16 if _features.get("avx512f") else 8  # floats in a vector register
_FUSED = bool(_features.get("fma") or _features.get("avx512f") or _features.get("neon"))  # multiply and add

# the processor's own sum of two products, which the compiler does not always find
_PAIRS = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[LANES]
if not _features.get("avx512bw" if LANES == 16 else "avx2"):
    _PAIRS = ""

_BFLOAT16_PRODUCTS = "llvm.x86.avx512bf16.dpbf16ps.512"

_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_cgutils: Any = cgutils
_intrinsic: Any = intrinsic


def has_bfloat16_products() -> bool:
    """Return whether the processor has AVX512's instruction for products of bfloat16."""
    return LANES == 16 and bool(_features.get("avx512bf16"))


class VectorWriter:
    """Writes loops over vectors of LANES floats; tensors are addresses, counts are int64.

    Attributes:
        HELD: vectors of a row that are in registers at a time.
    """

    HELD = 4

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.number = partial(ir.Constant, _I64)
        self.zeros = ir.Constant(_VECTOR, [0.0] * LANES)
        self.vector, self.integers = _VECTOR, ir.VectorType(_I32, LANES)

    # -- memory ------------------------------------------------------------------------------------------

    def pointer(self, address: Any, stored: Any = _F32) -> Any:
        return self.builder.inttoptr(address, stored.as_pointer())

    def at(self, pointer: Any, k: Any) -> Any:
        """Return a pointer to element k."""
        return self.builder.gep(pointer, [k])

    def one(self, pointer: Any, k: Any) -> Any:
        """Load element k as float32 (or the integer that it is)."""
        value = self.builder.load(self.at(pointer, k))
        return value if value.type == _I64 else widened(self.builder, value)

    def row(self, table: Any, indices: Any, i: Any, D: Any) -> Any:
        """Return a pointer to row ``indices[i]`` of ``table``."""
        return self.at(table, self.builder.mul(self.one(self.pointer(indices, _I64), i), D))

    def _vector_at(self, pointer: Any, k: Any, u: int) -> Any:
        place = self.at(pointer, self.builder.add(k, self.number(u * LANES)) if u else k)
        return self.builder.bitcast(place, ir.VectorType(pointer.type.pointee, LANES).as_pointer())

    def load(self, pointer: Any, k: Any, u: int = 0) -> Any:
        """Load vector u after element k, as float32."""
        align = 4 if pointer.type.pointee == _F32 else pointer.type.pointee.width // 8
        return widened(self.builder, self.builder.load(self._vector_at(pointer, k, u), align=align))

    def store(self, value: Any, pointer: Any, k: Any, u: int = 0) -> None:
        self.builder.store(value, self._vector_at(pointer, k, u), align=4)

    def write_out(self, value: Any, pointer: Any, k: Any, u: int, add: Any) -> None:
        """Store ``value`` as vector u after element k, or add it to what is there if ``add`` is true."""
        with self.builder.if_else(add) as (then, otherwise):
            with then:
                self.store(self.builder.fadd(self.load(pointer, k, u), value), pointer, k, u)
            with otherwise:
                self.store(value, pointer, k, u)

    # -- arithmetic --------------------------------------------------------------------------------------

    def _call(self, name: str, result: Any, *arguments: Any, **flags: Any) -> Any:
        kind = ir.FunctionType(result, [value.type for value in arguments])
        function = _cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments, **flags)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c for vectors or numbers, rounded once where the processor can, else twice.

        ``llvm.fmuladd`` leaves the choice to the compiler, which chose differently in two kernels.
        """
        if not _FUSED:
            return self.builder.fadd(self.builder.fmul(a, b), c)
        suffix = f"v{c.type.count}f32" if isinstance(c.type, ir.VectorType) else "f32"
        return self._call(f"llvm.fma.{suffix}", c.type, a, b, c)

    def square_root(self, vector: Any) -> Any:
        """The square roots of a vector's numbers."""
        return self._call(f"llvm.sqrt.v{LANES}f32", _VECTOR, vector)

    def total(self, vector: Any) -> Any:
        """Return the sum of a vector's numbers, added in one order in every kernel.

        So a product has the same bits whichever kernel computes it, however many others are beside it.
        """
        b, n = self.builder, LANES
        while n > 1:  # add the upper half to the lower
            n //= 2
            vector = b.fadd(*(self.shuffled(vector, vector, part) for part in (range(n), range(n, 2 * n))))
        return b.extract_element(vector, ir.Constant(_I32, 0))

    def repeated(self, value: Any, lanes: int = LANES) -> Any:
        """Return a vector with one number in all lanes."""
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_I32, 0))
        return self.shuffled(first, undefined, [0] * lanes)

    def shuffled(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Return a vector of ``lanes`` of a and b, which are numbered through."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes)))

    def transposed(self, vectors: list[Any]) -> list[Any]:
        """Transpose n vectors, n being a power of two: the first lanes of all come first, then the second.

        The result is as many vectors of the same length.  Each round interleaves the first half of all
        lanes with the second.
        """
        n, lanes = len(vectors), vectors[0].type.count
        order = [lane for i in range(lanes) for lane in (i, lanes + i)]
        for _ in range(n.bit_length() - 1):
            halves = zip(vectors[: n // 2], vectors[n // 2 :], strict=True)
            vectors = [
                self.shuffled(a, b, part) for a, b in halves for part in (order[:lanes], order[lanes:])
            ]
        return vectors

    # -- bfloat16 ----------------------------------------------------------------------------------------

    def pairs(self, pointer: Any, k: Any) -> Any:
        """Load 2 * LANES bfloat16 numbers from element k on, two in each 32 bits."""
        kind = ir.VectorType(_I32, LANES)
        return self.builder.load(self.builder.bitcast(self.at(pointer, k), kind.as_pointer()), align=2)

    def multiply_add_pairs(self, a: Any, b: Any, c: Any) -> Any:
        """Return the sums of each two neighbouring products of :meth:`pairs` a and b, plus c."""
        return self._call(_BFLOAT16_PRODUCTS, _VECTOR, c, a, b)

    # -- integers ----------------------------------------------------------------------------------------

    def sixteen_bits(self, pointer: Any, k: Any, u: int) -> Any:
        """Load vector u after element k: 2 * LANES signed integers of 8 or 16 bits, as 16."""
        kind = pointer.type.pointee
        place = self.at(pointer, self.builder.add(k, self.number(u * 2 * LANES)))
        place = self.builder.bitcast(place, ir.VectorType(kind, 2 * LANES).as_pointer())
        value = self.builder.load(place, align=kind.width // 8)
        return value if kind == _I16 else self.builder.sext(value, ir.VectorType(_I16, 2 * LANES))

    def pairs_of_products(self, a: Any, b: Any) -> Any:
        """Return the sums of each two neighbouring products of 16-bit integers: LANES integers of 32 bits."""
        wide = self.integers
        if _PAIRS:
            return self._call(_PAIRS, wide, a, b)
        whole = ir.VectorType(_I32, 2 * LANES)
        products = self.builder.mul(self.builder.sext(a, whole), self.builder.sext(b, whole))
        odd_and_even = (self.shuffled(products, products, range(odd, 2 * LANES, 2)) for odd in (0, 1))
        return self.builder.add(*odd_and_even)

    def repeated_pair(self, pair: Any) -> Any:
        """Return a vector of 2 * LANES integers of 16 bits, in which two, given as 32 bits, alternate."""
        return self.builder.bitcast(self.repeated(pair), ir.VectorType(_I16, 2 * LANES))

    def summed(self, integers: list[Any]) -> Any:
        """Return the sum of vectors of integers, in each lane."""
        total = integers[0]
        for more in integers[1:]:
            total = self.builder.add(total, more)
        return total

    def totals_of_eight(self, row: Callable[[int], list[Any]]) -> list[Any]:
        """Return the sums of all lanes of eight rows of integers, as vectors of eight.

        ``row(j)`` writes code for several vectors of row j, and there is a result for each.  Pairs of vectors
        are added as soon as both are there, so that the processor multiplies the next rows meanwhile.  A pair
        becomes a vector that has the sums of both, in half as many lanes each.
        """
        b = self.builder

        def both(x: Any, y: Any, first: list[int], second: list[int]) -> Any:
            return b.add(self.shuffled(x, y, first), self.shuffled(x, y, second))

        def narrowed(vector: Any) -> Any:
            return both(vector, vector, [*range(8)], [*range(8, 16)]) if LANES == 16 else vector

        def pair(i: int, j: int) -> list[Any]:  # the first in 128 bits, the second in the other 128
            rows = zip(row(i), row(j), strict=True)
            halves = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
            return [both(narrowed(x), narrowed(y), *halves) for x, y in rows]

        def four(i: int) -> list[Any]:  # rows i, i + 1 and those four behind, in 64 bits each
            rows = zip(pair(i, i + 4), pair(i + 1, i + 5), strict=True)
            return [both(x, y, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]) for x, y in rows]

        rows = zip(four(0), four(2), strict=True)
        return [both(x, y, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]) for x, y in rows]

    def as_floats(self, integers: Any) -> Any:
        return self.builder.sitofp(integers, ir.VectorType(_F32, integers.type.count))

    # -- variables and loops -----------------------------------------------------------------------------

    def variables(self, count: int, kind: Any = _VECTOR) -> list[Any]:
        return [_cgutils.alloca_once(self.builder, kind) for _ in range(count)]

    def zeroed(self, variables: list[Any]) -> None:
        for variable in variables:
            self.builder.store(self.zeros, variable)

    def times(self, n: Any) -> Any:
        """Loop n times; ``loop.index`` counts."""
        return _cgutils.for_range(self.builder, n, intp=_I64)

    def steps(self, start: Any, stop: Any, step: int) -> Any:
        """Loop over k = start, start + step, ... below ``stop``."""
        return _cgutils.for_range_slice(self.builder, start, stop, self.number(step), _I64)

    def stretches(self, D: Any, body: Callable[[Any, int], None]) -> None:
        """Write ``body(k, count)`` for each stretch of ``count`` vectors at element k of a row."""
        first = self.number(0)
        for count in (self.HELD, 2, 1):
            by = self.number(count * LANES)
            last = self.builder.mul(self.builder.sdiv(D, by), by)
            with self.steps(first, last, count * LANES) as (k, _):
                body(k, count)
            first = last


def vector_kernel(body: Callable[..., None]) -> Any:
    """Decorate ``body(writer, ...)``, which writes a kernel's code, as a function that kernels call.

    Its arguments are int64, float32 where annotated ``float``, or boolean where annotated ``bool``.  For a
    first argument ``like`` (:mod:`wordloom.kernels.memory`), ``body`` gets the LLVM type of an element.
    """
    parameters = list(inspect.signature(body).parameters.values())[1:]
    numbers = {"float": types.float32, "bool": types.boolean}
    declared = {p.name: numbers.get(str(p.annotation), types.int64) for p in parameters}

    def definition(_typing: Any, *found: Any) -> Any:
        kinds = list(declared.values())
        if "like" in declared:
            kinds[0] = found[0]

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            values = [
                stored_as(kind) if name == "like" else value
                for name, kind, value in zip(declared, kinds, args, strict=True)
            ]
            body(VectorWriter(builder), *values)
            return context.get_dummy_value()

        return types.void(*kinds), generate

    definition.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
    definition.__name__, definition.__doc__ = body.__name__, body.__doc__
    return _intrinsic(definition)
