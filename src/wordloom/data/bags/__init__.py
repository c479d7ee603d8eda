"""Bags of words: sparse rows of counts."""
