"""Measurements of the loop at several world sizes and against a minimal loop."""
