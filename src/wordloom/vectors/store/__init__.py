"""Words and their vectors, and the questions asked of them."""
