"""How fast the loop is at different numbers of ranks, and what it costs beside a minimal one."""
