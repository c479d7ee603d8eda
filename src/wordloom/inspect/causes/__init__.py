"""The tokens and the vectors that a prediction depends on."""
