"""Checkpoints: their format, writing, choosing, keeping."""
