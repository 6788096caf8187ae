"""Agents of other frameworks, unmodified. Each module needs the extra of its name.

The agent's state is stored with its A2A context, so any worker can run the next turn.
"""
