"""What each kind of training run brings: data, batches, objective, scores."""
