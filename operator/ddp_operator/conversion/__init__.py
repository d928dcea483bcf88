"""Convert jobs of other operators to DDPJobs. Pure functions from manifests to manifests."""
