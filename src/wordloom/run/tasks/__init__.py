"""Training tasks: the data, batches, objective and metrics of each kind of training run."""
