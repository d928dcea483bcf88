"""Shared by operator, agent and trainer; needs the standard library and pydantic only."""
