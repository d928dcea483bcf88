"""Pure decisions: from the observed state of a job and the current time to a plan."""
