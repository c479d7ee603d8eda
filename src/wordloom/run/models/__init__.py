"""The objects that `wordloom.load` returns, and what they compute for a user."""
