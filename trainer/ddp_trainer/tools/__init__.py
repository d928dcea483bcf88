"""Implementations of the commands other than `train`."""
