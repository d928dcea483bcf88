"""Blocking access to an API server with the rights of a user, for `ddpjob` and notebooks."""
