"""Features in the command line: the commands and checks that belong to features, and what other commands show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..cli.doctor.findings import Findings
from ..store import Keys, SyncStore
from .dead_letters.command import command as requeue_command
from .dead_letters.requeue import requeue_note
from .families.command import show_tree
from .feature import TaskView
from .webhooks.check import check_webhooks
from .webhooks.command import deliveries as deliveries_command

COMMANDS = (requeue_command, deliveries_command)
"""Commands of ``celery a2a`` that belong to features."""

TASK_VIEWS: Mapping[str, TaskView] = {
    "tree": TaskView("Show its parents and child tasks with their states.", show_tree),
}
"""Options of ``a2a get`` that show a stored task, by name."""

TASK_NOTES: Sequence[Callable[[SyncStore, Keys, str], str | None]] = (requeue_note,)
"""Functions that return the line that ``a2a get --store`` shows after a task, or None for no line."""

CHECKS: Mapping[str, Callable[[SyncStore, Keys], Findings]] = {"webhooks": check_webhooks}
"""Checks of ``a2a doctor`` that belong to features, by the name in its JSON output."""
