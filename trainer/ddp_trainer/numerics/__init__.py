"""Numerics of training: precision, update rules, learning rate, seeds and normalisation."""
