"""Export a checkpoint to files for other programs."""
