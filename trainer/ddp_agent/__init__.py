"""The agent: PID 1 of each worker container. It runs one attempt after the other under torchrun."""
