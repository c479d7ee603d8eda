"""``wordloom vectors``."""
