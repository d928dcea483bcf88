"""Pure functions that build the manifests of a job's children."""
