"""From samples to batches, in training and evaluation."""
