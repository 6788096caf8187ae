"""Adapters that run unmodified agents of other frameworks. Each adapter needs the extra of the same name.

The state of an agent is stored with the A2A context, so any worker can run the next turn.
"""
