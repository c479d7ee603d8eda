"""Fast paths of models, and the check that a model is as its config builds it."""
