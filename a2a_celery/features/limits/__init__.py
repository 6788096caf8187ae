"""Limits of the messages to agents: concurrent tasks and stored bytes of an owner, and queued runs of an agent.

Settings turn the limits on in each process that accepts messages.
"""
