"""The vectors of a text after each layer, and what can be read from them."""
