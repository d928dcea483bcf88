"""Processes with torch: the standby, the launcher of an attempt and the start of a forked rank.

Only modules of this folder import torch, and no module of another folder imports them: the agent
starts them as processes.

Process: standby, launcher, store and rank.
"""
