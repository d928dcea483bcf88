"""A run that is open: its parts, its state, and how it is opened."""
