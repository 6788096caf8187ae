"""Families: a task that the agent of another task starts is a child of this task.

A child is cancelled when its parent ends without a result, unless its creator excludes it. `Turn.call` calls another
agent and waits for the child, while the run of the parent is suspended. The feature uses ``features/steps``: the
journal of the turn records the child of each call, and its result.
"""

from __future__ import annotations

LIMIT_TEXTS = {"children": "The limit of {} live child tasks of one task is reached"}
"""Text of the error for an exceeded limit, by the name of the limit."""
