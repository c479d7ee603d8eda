"""Views of the neurons, the directions of vectors, and the facts that a model holds."""
