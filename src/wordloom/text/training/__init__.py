"""Train a tokenizer of each kind on a stream of text."""
