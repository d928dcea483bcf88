"""An open run: its parts, its state, and the code that opens it."""
