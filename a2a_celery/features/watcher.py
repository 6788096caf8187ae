"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from .questions.reminder_poster import ReminderPoster

ROLES = (ReminderPoster,)
"""Roles of each watcher, each a class with the members of `watcher.role_loop.Role`, which is called with the store and
its keys."""
