"""fastText: the model, character n-grams, the classifier's trainer, its kernels and their NumPy twin."""
