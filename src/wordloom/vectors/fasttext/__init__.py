"""fastText: the model, character n-grams, the classifier's trainer and its kernels."""
