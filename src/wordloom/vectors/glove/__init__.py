"""GloVe: co-occurrence counts, trainer, kernels and their NumPy twin."""
