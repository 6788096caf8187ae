"""The ids of tasks that nobody sent: every side is filled with the same."""

from __future__ import annotations


def seeded_id(number: int) -> str:
    """The id of the task with that number; as long as a real one."""
    return f"00000000-0000-4000-8000-{number:012d}"


def seeded_context(number: int) -> str:
    """The id of that task's context, which has no other; as long as a real one."""
    return f"00000000-0000-4000-9000-{number:012d}"
