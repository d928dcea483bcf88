"""The report of a run: a pure function from its history and its status to one HTML page."""
