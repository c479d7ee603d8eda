"""The words of a corpus: vocabulary, phrases and how text is split into words."""
