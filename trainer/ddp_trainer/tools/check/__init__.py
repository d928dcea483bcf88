"""Checks of a task in one process, before a job occupies many machines."""
