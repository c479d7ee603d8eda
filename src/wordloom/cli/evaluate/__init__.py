"""``wordloom evaluate``."""
