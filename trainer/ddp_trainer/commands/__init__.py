"""Commands of `ddp-trainer`."""
