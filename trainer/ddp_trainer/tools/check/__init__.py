"""Check a task in one process before a job uses many machines."""
