"""Agent, PID 1 of each worker container: it runs one attempt after another under torchrun.

Five types of processes run in a worker container. The last line of each module's docstring names
the processes in which the module runs:

- agent: `main`, `agent` and the threads that `main` starts. Its code is in `processes`, `network`
  and `status`. It does not import torch.
- standby: `launcher.standby`. It has imported torch, and forks the launcher of each attempt.
- launcher: `launcher.torchrun`. It runs torchrun for one attempt, as a fork of the standby (warm)
  or as a new process (cold).
- store: `launcher.rendezvous_store`, a fork of node 0's launcher with torchrun's rendezvous store.
- rank: the user's program. In a warm start it is a fork of the launcher, begun by `launcher.entry`.

Process: all.
"""
