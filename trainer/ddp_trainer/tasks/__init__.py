"""Bundled tasks. They use only interfaces that are open to a user's own task."""
