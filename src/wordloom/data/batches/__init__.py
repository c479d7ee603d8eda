"""Batches: pure functions of the shards, a seed and an index."""
