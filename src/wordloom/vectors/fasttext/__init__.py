"""fastText: model, subwords, supervised mode, kernels and their NumPy twin."""
