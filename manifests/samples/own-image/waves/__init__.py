"""A task in an image of its own."""
