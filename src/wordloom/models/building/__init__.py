"""Build a model of any family from plain settings, count its cost, compare it with its config."""
