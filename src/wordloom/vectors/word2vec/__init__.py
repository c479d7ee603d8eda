"""word2vec: trainer, kernels and their NumPy twin."""
