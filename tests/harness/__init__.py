"""A real Kubernetes on one Linux machine, for the tests of this project."""
