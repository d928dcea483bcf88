"""An open run: its parts and state, and the code that opens the run."""
