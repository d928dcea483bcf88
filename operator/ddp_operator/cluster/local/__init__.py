"""Cluster without Kubernetes: the pods are processes on this machine."""
