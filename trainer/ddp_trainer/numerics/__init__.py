"""Arithmetic: precision, update rules, learning rate, seeds, normalisation."""
