"""``wordloom data``: named data sets, and corpora that are prepared for training."""
