"""Shell completion of agent names and task ids. An error results in no completions, because a prompt cannot show it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from itertools import islice
from typing import Any

import click
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from ..app import A2A, import_modules
from ..client import state_name
from ..store import Keys, SyncStore
from ..store.admin.scan import TaskSummary, open_tasks
from .app_loader import join_dev

MAX_TASKS = 200
"""Maximum number of tasks to read for a completion."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(items: Callable[[A2A], Iterator[CompletionItem]]) -> Completer:
    """Return a click callback that completes a parameter with the values that `items` yields for the app in ``-A``."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        location = context.find_root().params.get("app")
        if not isinstance(location, str):
            return []
        try:
            # modules of an app may print text when they are imported
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                app: Any = find_app(location)
                import_modules(app)
                join_dev(app)
                return [item for item in items(A2A.of(app)) if item.value.startswith(incomplete)]
        except Exception:
            return []

    return complete


def _agents(a2a: A2A) -> Iterator[CompletionItem]:
    for name, agent in a2a.agents.items():
        yield CompletionItem(name, help=" ".join(agent.card.description.split()))


def task_completer(list_tasks: Callable[[SyncStore, Keys], Iterator[TaskSummary]]) -> Completer:
    """Return a click callback that completes a parameter with the ids of the tasks that `list_tasks` yields."""

    def tasks(a2a: A2A) -> Iterator[CompletionItem]:
        with closing(SyncStore(a2a.settings.store_url)) as store:
            for task in islice(list_tasks(store, Keys(a2a.settings.key_prefix)), MAX_TASKS):
                yield CompletionItem(task.ref.task_id, help=f"{state_name(task.state)} {task.agent}")

    return _completer(tasks)


complete_agent = _completer(_agents)
complete_open_task = task_completer(open_tasks)
