"""``wordloom chat``."""
