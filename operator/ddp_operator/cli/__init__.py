"""The `ddpjob` command line."""
