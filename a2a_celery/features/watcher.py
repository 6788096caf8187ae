"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from .questions.reminder_poster import ReminderPoster

ROLES = (ReminderPoster,)
"""Roles of each watcher."""
