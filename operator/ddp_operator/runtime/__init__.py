"""The operator as a process: queue, cache, controller, health."""
