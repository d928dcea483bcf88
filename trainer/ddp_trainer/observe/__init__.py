"""Observability of a run: heartbeats, events, progress, profiles and phase times."""
