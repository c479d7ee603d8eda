"""Keyed vectors: words, their vectors, queries and evaluation."""
