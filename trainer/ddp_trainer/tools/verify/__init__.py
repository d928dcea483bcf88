"""Compare training on several ranks with training in one process."""
