"""Checkpoints as users have them, opened as tensors and one `ModelConfig`."""
