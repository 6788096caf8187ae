"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from .families.child_canceller import ChildCanceller
from .questions.reminder_poster import ReminderPoster

ROLES = (ChildCanceller, ReminderPoster)
"""Roles of each watcher: classes with the members of `watcher.role_loop.Role` that are called with a `TaskService`. The
attribute `channel` is the name of the channel whose messages start the next tick early, or "" for no channel."""
