"""A module beside the programs."""

VALUE = 42
