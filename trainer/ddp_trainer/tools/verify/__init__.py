"""Comparison of several ranks with one process."""
