"""Ids of seeded tasks. They are the same on every server."""

from __future__ import annotations


def seeded_id(number: int) -> str:
    """Return the id of the task with this number. It has the length of a real id."""
    return f"00000000-0000-4000-8000-{number:012d}"


def seeded_context(number: int) -> str:
    """Return the id of the context of the task with this number. It has the length of a real id."""
    return f"00000000-0000-4000-9000-{number:012d}"
