"""Agent status and its sources: heartbeats, hangs and GPUs. Also the metrics derived from it.

Process: agent.
"""
