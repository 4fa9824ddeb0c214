"""The promotion gate and the model card."""
