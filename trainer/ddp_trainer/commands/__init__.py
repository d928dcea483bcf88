"""The commands of `ddp-trainer`."""
