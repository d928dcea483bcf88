"""Build the group object of a job and the labels or fields of its pods, for each gang scheduler."""
