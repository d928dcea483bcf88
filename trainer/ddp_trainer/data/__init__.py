"""Training and evaluation data: sampling, loading, and copying to the device."""
