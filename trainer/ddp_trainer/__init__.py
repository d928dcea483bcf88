"""Train a task on any number of ranks, and resume it from its newest checkpoint."""
