"""What word vectors are used for: evaluation, axes, maps, text embeddings."""
