"""word2vec: the trainer and its kernels, and a trainer for GPUs."""
