"""Cluster access: one protocol with two implementations, the Kubernetes API and local processes."""
