"""Steering messages: an agent with ``on_message="steer"`` reads the client's messages while it works.

The core keeps the messages that wait for a run, and decides which message begins the next turn; see
``scripts/lib/incoming.lua``.
"""
