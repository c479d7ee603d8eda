"""One file per family: its names and layout on disk, as transformers stores it."""
