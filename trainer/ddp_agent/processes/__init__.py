"""Start, supervise and end the processes of an attempt.

Process: agent.
"""
