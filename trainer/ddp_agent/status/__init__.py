"""Agent status and what it is made of: heartbeats, hangs, GPUs; and metrics, its other form."""
