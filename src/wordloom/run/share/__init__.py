"""Share a checkpoint: its model card, and the upload to a hub."""
