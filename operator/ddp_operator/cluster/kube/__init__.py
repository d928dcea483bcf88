"""Cluster access through a Kubernetes API server."""
