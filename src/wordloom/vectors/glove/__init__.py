"""GloVe: co-occurrence counts, the model, its kernels and their NumPy twin."""
