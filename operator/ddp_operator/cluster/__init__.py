"""The door to the world: one protocol, a Kubernetes API server or local processes behind it."""
