"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..watcher.role_loop import RoleLoop, RoleServices
from .questions.reminder_poster import ReminderPoster
from .webhooks.roles import delivery_loops

ROLES = (ReminderPoster,)
"""Roles of each watcher, each a class with the members of `watcher.role_loop.Role`, which is called with the store and
its keys."""

LOOPS: Sequence[Callable[[RoleServices], Sequence[RoleLoop]]] = (delivery_loops,)
"""Functions that return the loops of further roles, which need the settings or connections of their own."""
