"""Launcher of an attempt, the standby that forks it, and the start of a forked rank.

Only modules of this folder import torch. None of them runs in the agent's own process.
"""
