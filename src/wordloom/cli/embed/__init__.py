"""``wordloom embed``."""
