"""Module beside the programs, which one of them imports."""

VALUE = 42
