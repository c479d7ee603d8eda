"""Compiled CPU kernels, which take addresses and numbers and depend on no module, model or config.

All kernels are Python functions that numba compiles.  They share one dialect:

- A tensor is an address, read through :mod:`~wordloom.kernels.memory`: ``pointer(address, like)`` gives it a
  type, ``load`` and ``store`` read and write one element.  Elements are float32, or bfloat16 as 16 bits;
  arithmetic is in float32.  ``like`` is a value of the stored type.
- :mod:`~wordloom.kernels.arithmetic` has exponentials, norms, rotation and hashes, written once.
- The compiler vectorizes plain loops.  Where it does not, :mod:`~wordloom.kernels.products` (small
  matrix products) and :mod:`~wordloom.kernels.rows` (rows of a table) write vector instructions, with the
  ``VectorWriter`` of :mod:`~wordloom.kernels.registers`.
- The decorators of :mod:`~wordloom.kernels.machine_code` say how freely the compiler may reorder arithmetic,
  and keep compiled code on disk under a hash of every file that it inlines.

Kernels use threads in one of two ways.  Work that splits into independent shares is a
:mod:`~wordloom.kernels.parallel` kernel, which PyTorch's own threads run: ``elementwise``, ``attention`` and
``recurrent``.  A program whose threads wait for one another runs on a team of threads, which wait at a
:mod:`~wordloom.kernels.barrier`: ``decoding`` and the kernels of word vectors.  PyTorch's pool cannot run
these, because it may give a program fewer threads than it asks for.

To add a kernel:

1. Write it next to similar kernels, for example in ``elementwise``::

       @parallel
       @exact
       def double(start: int, stop: int, x: Stored, y: Stored) -> None:
           for i in range(start, stop):
               store(y, i, f4(2.0) * load(x, i))

2. Call it if ``programs.fits(x)`` is true: ``run("elementwise.double", x.dtype, n, x, y)``.  Otherwise
   compute the plain PyTorch expression, its slow twin.
3. Compare both at random sizes in ``tests/kernels/cases.py``, which also runs it on guarded memory.
4. Time both in ``benchmarks/kernels.py``.  A kernel that is not faster is removed.
"""

GROUP = 64
"""The weights in 8 bits that share a scale; a row is filled up with zeros to a multiple."""
