"""``wordloom lab``."""
