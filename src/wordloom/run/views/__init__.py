"""Views of a loaded model that need its tokenizer or an evaluation; the others are in wordloom.inspect."""
