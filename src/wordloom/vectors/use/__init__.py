"""Uses of word vectors: a classifier, axes, maps and text embeddings."""
