"""Cluster access: one protocol, implemented by the Kubernetes API and by local processes."""
