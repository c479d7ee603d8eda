"""Checkpoints: load a model from its folder, average several."""
