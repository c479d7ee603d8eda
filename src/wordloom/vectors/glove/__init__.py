"""GloVe: co-occurrence counts, the model and its kernels."""
