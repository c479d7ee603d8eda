"""Compiled CPU kernels: numbers in, numbers out; they know no module."""
