"""Strategies that spread a model over the ranks, and the communication of gradients."""
