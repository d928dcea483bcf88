"""Programs of processes that import torch: the standby, the launcher and forked ranks.

Only modules of this folder import torch, and no module of another folder imports them: the agent
starts these modules as processes.

Process: standby, launcher, store and rank.
"""
