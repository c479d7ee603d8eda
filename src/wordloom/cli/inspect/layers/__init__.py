"""Views of the vectors after each layer."""
