"""Stores: the places that hold the checkpoints of a run, behind one protocol."""
