"""Models of any family: built from a config, compared with their config, and their cost."""
