"""Tokenizer files: read and written in the formats that other tools use."""
