"""Calls to agents, and the objects that an agent's code uses: turn and calls."""
