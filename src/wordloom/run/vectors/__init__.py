"""Train word vectors by a recipe."""
