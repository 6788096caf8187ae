"""Features in watchers: the roles that belong to features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..operations.service import TaskService
from ..store.log.pubsub import PubSubListener
from ..watcher.metrics import WatcherMetrics
from ..watcher.role_loop import RoleLoop
from .families.child_canceller import ChildCanceller
from .questions.reminder_poster import ReminderPoster
from .webhooks.roles import delivery_loops

ROLES = (ChildCanceller, ReminderPoster)
"""Roles of each watcher: classes with the members of `watcher.role_loop.Role` that are called with a `TaskService`. The
attribute `channel` is the name of the channel whose messages start the next tick early, or "" for no channel."""

LOOPS: Sequence[Callable[[TaskService, WatcherMetrics, PubSubListener], Sequence[RoleLoop]]] = (delivery_loops,)
"""Functions that return the loops of further roles, which have connections of their own. A simulated watcher does not
run these loops."""
