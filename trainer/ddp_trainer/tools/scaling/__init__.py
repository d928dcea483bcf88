"""Measure the training loop at several world sizes, and compare it with a minimal loop."""
