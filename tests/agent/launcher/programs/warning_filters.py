"""Warnings show once."""

import warnings

for _ in range(2):
    warnings.warn("careful", UserWarning)
