"""The operator's runtime: work queue, cache, controller, leader election and health endpoints."""
