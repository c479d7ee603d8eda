"""The version, on its own so that anything may name it without importing the package's roof."""

__version__ = "0.1.0.dev0"
