"""The operator: turns a DDPJob into a multi-node training run that finishes."""
