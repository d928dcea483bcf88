"""A real Kubernetes cluster on one Linux machine, for the tests of this project."""
