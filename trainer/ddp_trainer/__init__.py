"""Trains a task on any number of ranks, and resumes wherever it was ended."""
