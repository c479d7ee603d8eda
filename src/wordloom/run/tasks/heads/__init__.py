"""Fine-tuning tasks: a head on a pretrained model."""
