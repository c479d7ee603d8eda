"""word2vec: the trainer, its kernels and their NumPy twin, and a trainer for GPUs."""
