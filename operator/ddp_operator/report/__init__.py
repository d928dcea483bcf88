"""The report of a run: a pure function from the run's history and status to an HTML page."""
