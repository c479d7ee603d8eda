"""Build a model of any family from plain settings, and count its cost."""
