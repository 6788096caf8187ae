"""Adapters that run unmodified agents of other frameworks. Each module needs the extra of the same name.

The agent's state is stored with its A2A context, so any worker can run the next turn.
"""
