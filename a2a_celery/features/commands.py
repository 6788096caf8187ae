"""Features in the command line: the commands that belong to features, and what other commands show of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..store import Keys, SyncStore
from .dead_letters.command import command as requeue_command
from .dead_letters.requeue import requeue_note
from .families.command import show_tree
from .feature import TaskView

COMMANDS = (requeue_command,)
"""Commands of ``celery a2a`` that belong to features."""

TASK_VIEWS: Mapping[str, TaskView] = {
    "tree": TaskView("Show its parents and child tasks with their states.", show_tree),
}
"""Options of ``a2a get`` that show a stored task, by name."""

TASK_NOTES: Sequence[Callable[[SyncStore, Keys, str], str | None]] = (requeue_note,)
"""Functions that return the line that ``a2a get --store`` shows after a task, or None for no line."""
