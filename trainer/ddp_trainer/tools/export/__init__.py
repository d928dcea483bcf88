"""Export of a checkpoint to files for other programs."""
