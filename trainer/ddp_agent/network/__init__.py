"""Network code of the agent: HTTP server, start barrier, and notices to node 0's agent.

Process: agent.
"""
