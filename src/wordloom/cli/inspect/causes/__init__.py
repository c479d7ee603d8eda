"""Views of the tokens, vectors and parts that a prediction depends on."""
