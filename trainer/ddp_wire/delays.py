"""Delays that both operator and agent use."""

LONGEST_BACKOFF_SECONDS = 300
"""Longest delay of the operator before a new attempt, in seconds."""
