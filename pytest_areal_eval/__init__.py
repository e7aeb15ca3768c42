"""Evaluate language-model checkpoints with pytest."""
