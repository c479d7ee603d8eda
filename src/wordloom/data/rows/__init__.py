"""Labelled rows: classes, scores, choices, tagged words, questions, pairs."""
