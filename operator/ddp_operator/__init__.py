"""Kubernetes operator that runs DDPJobs: multi-node PyTorch DDP training jobs."""
