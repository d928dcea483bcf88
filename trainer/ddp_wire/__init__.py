"""Code that operator, agent and trainer share: standard library and pydantic only."""
