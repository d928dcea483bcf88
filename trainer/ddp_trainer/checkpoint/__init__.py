"""Checkpoints: format, fence, writing, loading and retention."""
