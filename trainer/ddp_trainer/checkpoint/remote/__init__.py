"""Object stores: copies of checkpoints behind the run, and reads from another cluster."""
