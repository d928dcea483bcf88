"""Agent, PID 1 of each worker container: it runs one attempt after another under torchrun."""
