"""Pure functions from a job to the manifests of its children."""
