"""Compiled programs that decode one token through a whole model."""
