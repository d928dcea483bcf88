"""Cluster access without Kubernetes: the pods are processes on this machine."""
