"""Translation: training task, scores, views and vocabularies."""
