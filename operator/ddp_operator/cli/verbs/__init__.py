"""The verbs of `ddpjob`, one click command per module."""
