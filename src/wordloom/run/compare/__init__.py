"""Compare families of models on one text, with one tokenizer and one budget."""
