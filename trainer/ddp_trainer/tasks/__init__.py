"""Bundled tasks. They use only what is available to a user's own task."""
