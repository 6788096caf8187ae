"""Ids of seeded tasks, which are the same on every server."""

from __future__ import annotations


def seeded_id(number: int) -> str:
    """Return the id of the task `number`. The id has the length of a real id."""
    return f"00000000-0000-4000-8000-{number:012d}"


def seeded_context(number: int) -> str:
    """Return the context id of the task `number`. The id has the length of a real id."""
    return f"00000000-0000-4000-9000-{number:012d}"
