"""``wordloom inspect``."""
