"""Pure decisions: what was observed and the time, to what shall be."""
