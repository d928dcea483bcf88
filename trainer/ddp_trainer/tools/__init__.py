"""The bodies of the commands other than `train`."""
