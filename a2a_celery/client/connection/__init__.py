"""Connections to remote agents: cards, credentials, protocol bindings, size limits and resumable event streams."""
