"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from .questions.reminder_poster import ReminderPoster

ROLES = (ReminderPoster,)
"""Roles of each watcher. Each is called with the store and its keys, and has the members of `watcher.role_loop.Role`."""
