"""What a prediction depends on: parts of the text, and states of the model."""
