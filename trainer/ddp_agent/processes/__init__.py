"""Processes of an attempt, as the agent starts, supervises and ends them.

Process: agent.
"""
