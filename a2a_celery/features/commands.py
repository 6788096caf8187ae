"""Features in the command line: the commands that belong to features, and what other commands show of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..store import Keys, SyncStore
from .dead_letters.requeue import requeue_note

COMMANDS: Mapping[str, str] = {"requeue": "a2a_celery.features.dead_letters.command"}
"""Modules with the commands of ``celery a2a`` that belong to features, by the name of the command.

The attribute `command` of a module is the command. The module is imported when the command is used or listed."""

TASK_NOTES: Sequence[Callable[[SyncStore, Keys, str], str | None]] = (requeue_note,)
"""Functions that return the line that ``a2a get --store`` shows after a task, or None for no line."""
