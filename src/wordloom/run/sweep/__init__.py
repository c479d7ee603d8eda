"""Train a grid of runs, and compare finished runs."""
