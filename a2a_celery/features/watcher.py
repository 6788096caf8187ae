"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..watcher.role_loop import RoleLoop, RoleServices
from .families.child_canceller import ChildCanceller
from .questions.reminder_poster import ReminderPoster
from .webhooks.roles import delivery_loops

ROLES = (ChildCanceller, ReminderPoster)
"""Roles of each watcher: classes with the members of `watcher.role_loop.Role` that are called with a `TaskService`. The
attribute `channel` is the name of the channel whose messages start the next tick early, or "" for no channel."""

LOOPS: Sequence[Callable[[RoleServices], Sequence[RoleLoop]]] = (delivery_loops,)
"""Functions that return the loops of further roles, which need the settings or connections of their own."""
