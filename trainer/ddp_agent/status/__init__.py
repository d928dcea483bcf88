"""The agent status, its sources (heartbeats, hangs and GPUs), and the agent's metrics.

Process: agent.
"""
