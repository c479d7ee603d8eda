"""Grids of runs and their comparison."""
