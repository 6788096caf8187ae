"""``a2a get TASK --store | --execution`` and ``a2a tail | cancel TASK --store``: access to a single task of
any caller, in the store.

A gateway with authentication shows a task only to its owner, and an operator does not have the owner's credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import click
from a2a.types import StreamResponse, Task
from a2a.utils.errors import TaskNotFoundError

from ...agents import longest_grace
from ...app import A2A
from ...client import state_name
from ...dispatch import Publisher
from ...features.commands import TASK_NOTES, TASK_VIEWS
from ...lifecycle.execution import ENDS, process_of, worker_of
from ...lifecycle.references import Scope
from ...lifecycle.states import TERMINAL
from ...operations.service import TaskService
from ...store import Keys, SyncStore
from ...store.runs.activity_durations import ActivityDuration, activity_durations
from ...store.runs.release import Activities, read_activities
from ...store.tasks.commands import read_task
from ...submission import Submissions
from ..options import Decorator
from ..output import EventPrinter, Table, duration, print_task, printable
from .cancel_all import BEYOND_GRACE, cancel_tasks
from .selection import missing_task, operator_store, refuse_gateway_options, run_on_service, with_store_mode

StoredTaskCommand = Callable[[click.Context, str, str | None, bool], None]
"""Function that receives the context of a command, the id of a task, its agent or None, and True for JSON."""

HELP = {
    "store": "Use the task of any caller, for operators.",
    "execution": "Show the activities of its runs: state, time, duration and worker.",
    **{name: view.help for name, view in TASK_VIEWS.items()},
}
"""Help of each option of `with_store_options`."""

UNKNOWN_DURATION = "lost"
"""Text that is shown as the duration of an activity if the next activity was not recorded."""


def with_store_options(**functions: StoredTaskCommand) -> Decorator:
    """Return a decorator that adds an option to a command for each of `functions`. With this option, the command calls
    the function instead of a gateway."""

    def choose(context: click.Context, values: dict[str, Any]) -> Callable[[], None] | None:
        chosen = [name for name in functions if values.pop(name)]
        if not chosen:
            return None
        if len(chosen) > 1:
            raise click.UsageError(f"--{chosen[0]} and --{chosen[1]} exclude each other")
        refuse_gateway_options(context, f"--{chosen[0]}")
        return partial(functions[chosen[0]], context, values["task"], values["agent"], values["as_lines"])

    options = [
        click.option(f"--{name}", is_flag=True, help=f"{HELP[name]} Reads A2A_STORE_URL; needs no gateway.")
        for name in functions
    ]
    return with_store_mode(choose, *options)


def show_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print a task from the store, and the notes of features about it."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, activities = _read(a2a, store, keys, task_id, agent)
        print_task(task, as_lines, activities.agent)
        if as_lines:
            return
        for note in TASK_NOTES:
            if line := note(store, keys, task_id):
                click.echo(line)


def tail_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Show a task and its events until the task ends or pauses."""
    with operator_store(context, agent) as (a2a, store, keys):
        scope = _read(a2a, store, keys, task_id, agent)[1].scope
        printer = EventPrinter(as_lines=as_lines)
        try:
            for event in _events(a2a, scope, task_id):
                if event.HasField("task") and printer.result().task_id:
                    printer.end_line()
                    click.echo("the store lost events that were shown: the task is shown again", err=True)
                    printer = EventPrinter(as_lines=as_lines)
                printer.show(event)
        except TaskNotFoundError as e:
            raise missing_task(a2a, task_id, agent) from e
        finally:
            printer.end_line()


def cancel_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Cancel a task as its client would, and show the task when its agent has stopped or the timeout has passed."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, activities = _read(a2a, store, keys, task_id, agent)
        if task.status.state in TERMINAL:
            raise click.ClickException(f"task {task_id} is {state_name(task.status.state)}: it has ended")
        timeout = longest_grace(a2a.agents.values(), a2a.settings) + BEYOND_GRACE
        target = (task_id, activities.scope, activities.context_id)

        async def cancel(service: TaskService) -> str:
            [outcome] = [outcome async for _, outcome in cancel_tasks(service, [target], timeout)]
            return outcome

        outcome = run_on_service(a2a, cancel)
        print_task(_read(a2a, store, keys, task_id, agent)[0], as_lines)
        if outcome == "running":
            raise click.ClickException(
                f"the agent of task {task_id} did not stop in time: see a2a list --stuck, and a2a doctor"
            )


def _events(a2a: A2A, scope: Scope, task_id: str) -> Iterator[StreamResponse]:
    submissions = Submissions(a2a.agents, lambda: a2a.settings, lambda: Publisher(a2a.celery, {}))
    with closing(submissions):
        yield from submissions.handle(scope.agent, task_id, owner=scope.owner, tenant=scope.tenant).events()


def _read(a2a: A2A, store: SyncStore, keys: Keys, task_id: str, agent: str | None) -> tuple[Task, Activities]:
    """Return a task and its activities.

    Raises:
        click.ClickException: The task does not exist, or belongs to an agent other than `agent`.
    """
    snapshot, activities = store.run(read_task(keys, None, task_id)), store.run(read_activities(keys, task_id))
    if snapshot is None or activities is None or agent not in (None, activities.agent):
        raise missing_task(a2a, task_id, agent)
    return snapshot[0], activities


def _activity_fields(duration_of: ActivityDuration, task_id: str, agent: str) -> dict[str, Any]:
    activity, transition, seconds = duration_of.activity, duration_of.activity.transition, duration_of.seconds
    return {
        "task": task_id,
        "agent": agent,
        "run": activity.run,
        "attempt": activity.attempt,
        "worker": worker_of(activity.runner),
        "process": process_of(activity.runner),
        "number": transition.number,
        "from": transition.before,
        "state": transition.after,
        "at": transition.at.isoformat(),
        "seconds": None if seconds is None else round(seconds, 6),
        "open": duration_of.open,
        "detail": dict(transition.detail),
    }


def _how_long(duration_of: ActivityDuration) -> str:
    if duration_of.seconds is None:
        return "-" if duration_of.activity.transition.after in ENDS else UNKNOWN_DURATION
    text = f"{duration_of.seconds:.3f} s" if duration_of.seconds < 60 else duration(duration_of.seconds)
    return f"{text} so far" if duration_of.open else text


ACTIVITY_COLUMNS: Mapping[str, Callable[[ActivityDuration], str]] = {
    "RUN": lambda duration_of: str(duration_of.activity.run),
    "ATTEMPT": lambda duration_of: str(duration_of.activity.attempt),
    "STATE": lambda duration_of: duration_of.activity.transition.after,
    "WHEN": lambda duration_of: f"{duration_of.activity.transition.at:%Y-%m-%d %H:%M:%S.%f}"[:-3],
    "FOR": _how_long,
    "WHAT": lambda duration_of: ", ".join(f"{k} {v}" for k, v in duration_of.activity.transition.detail.items()),
    "WORKER": lambda duration_of: worker_of(duration_of.activity.runner),
}


def show_execution(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print the activities of a task's runs."""
    with operator_store(context, agent) as (a2a, store, keys):
        activities = store.run(read_activities(keys, task_id))
    if activities is None or agent not in (None, activities.agent):
        raise missing_task(a2a, task_id, agent)
    if not as_lines:
        version = f", version {activities.code_version}" if activities.code_version else ""
        of_agent, state = f"{activities.agent}{version}", state_name(activities.state)
        heading = f"task {task_id} ({of_agent}, context {activities.context_id}): {state}"
        click.echo(printable(heading))
    table = Table(ACTIVITY_COLUMNS, partial(_activity_fields, task_id=task_id, agent=activities.agent), times=["WHEN"])
    empty = "no activity is recorded yet: no run has begun, or one has just begun"
    table.print(list(activity_durations(activities)), as_lines, empty)
