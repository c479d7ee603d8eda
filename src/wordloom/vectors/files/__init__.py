"""Formats of word vectors on disk."""
