"""``a2a get TASK --store | --execution`` and ``a2a tail | cancel TASK --store``: access to a single task of
any caller, in the store.

A gateway with authentication shows a task only to its owner, and an operator does not have the owner's credentials.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

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
from ..output import Column, EventPrinter, Table, duration, print_task, printable
from .cancel_all import BEYOND_GRACE, cancel_all, cancel_tasks
from .selection import missing_task, operator_store, run_on_service, selecting, with_store_modes

UNKNOWN_DURATION = "lost"
"""Text that is shown as the duration of an activity if the next activity was not recorded."""


def require_task(task_id: str | None) -> str:
    """Return the argument TASK of ``cancel``, which only --all does not need.

    Raises:
        click.UsageError: There is no argument.
    """
    if task_id is None:
        raise click.UsageError("Missing argument 'TASK': pass one, or --all and filters")
    return task_id


def show_task(context: click.Context, *, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print a task from the store, and the notes of features about it."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, activities = _read(a2a, store, keys, task_id, agent)
        print_task(task, as_lines, activities.agent)
        if as_lines:
            return
        for note in TASK_NOTES:
            if line := note(store, keys, task_id):
                click.echo(line)


def tail_task(context: click.Context, *, task_id: str, agent: str | None, as_lines: bool) -> None:
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


def cancel_task(context: click.Context, *, task_id: str | None, agent: str | None, as_lines: bool) -> None:
    """Cancel a task as its client would, and show the task when its agent has stopped or the timeout has passed."""
    task_id = require_task(task_id)
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


def _how_long(duration_of: ActivityDuration) -> str:
    if duration_of.seconds is None:
        return "-" if duration_of.activity.transition.after in ENDS else UNKNOWN_DURATION
    text = f"{duration_of.seconds:.3f} s" if duration_of.seconds < 60 else duration(duration_of.seconds)
    return f"{text} so far" if duration_of.open else text


def _activities_table(task_id: str, agent: str) -> Table[ActivityDuration]:
    return Table(
        [
            Column("", "task", lambda _: task_id),
            Column("", "agent", lambda _: agent),
            Column("RUN", "run", lambda each: each.activity.run),
            Column("ATTEMPT", "attempt", lambda each: each.activity.attempt),
            Column("", "process", lambda each: process_of(each.activity.runner)),
            Column("", "number", lambda each: each.activity.transition.number),
            Column("", "from", lambda each: each.activity.transition.before),
            Column("STATE", "state", lambda each: each.activity.transition.after),
            Column("WHEN", "at", lambda each: each.activity.transition.at, _millisecond),
            Column("FOR", "seconds", lambda each: None if each.seconds is None else round(each.seconds, 6), _how_long),
            Column("", "open", lambda each: each.open),
            Column("WHAT", "detail", lambda each: dict(each.activity.transition.detail), _detail_text),
            Column("WORKER", "worker", lambda each: worker_of(each.activity.runner)),
        ]
    )


def _millisecond(duration_of: ActivityDuration) -> str:
    return f"{duration_of.activity.transition.at:%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _detail_text(duration_of: ActivityDuration) -> str:
    return ", ".join(f"{name} {value}" for name, value in duration_of.activity.transition.detail.items())


def show_execution(context: click.Context, *, task_id: str, agent: str | None, as_lines: bool) -> None:
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
    empty = "no activity is recorded yet: no run has begun, or one has just begun"
    _activities_table(task_id, activities.agent).print(list(activity_durations(activities)), as_lines, empty)


def _option(name: str, text: str) -> Decorator:
    return click.option(f"--{name}", is_flag=True, help=f"{text} Reads A2A_STORE_URL; needs no gateway.")


_store_option = _option("store", "Use the task of any caller, for operators.")

with_get_options = with_store_modes(
    {
        **{name: view.show for name, view in TASK_VIEWS.items()},
        "execution": show_execution,
        "store": show_task,
    },
    *(_option(name, view.help) for name, view in TASK_VIEWS.items()),
    _option("execution", "Show the activities of its runs: state, time, duration and worker."),
    _store_option,
    used_by={"tenant": [""]},
)
"""Decorator that adds the options --store, --execution and the views of features to ``get``."""

with_tail_options = with_store_modes({"store": tail_task}, _store_option, used_by={"tenant": [""]})
"""Decorator that adds the option --store to ``tail``."""

FILTERS = ("owner", "context_id", "state", "since", "until", "begun")

with_cancel_options = with_store_modes(
    {"everything": cancel_all, "store": cancel_task},
    click.option(
        "--all",
        "everything",
        is_flag=True,
        help="Cancel the open tasks of all callers, for operators. Writes to A2A_STORE_URL; needs no gateway.",
    ),
    click.option("--yes", is_flag=True, help="With --all: do not ask for confirmation."),
    click.option("--dry-run", is_flag=True, help="With --all: list the tasks, and cancel none."),
    click.option("--limit", "most", type=click.IntRange(min=1), help="With --all: maximum number of tasks."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="With --all: the time for each agent to stop. Default: the longest cancel_grace of all agents plus 5.",
    ),
    selecting("tenant", *FILTERS),
    _store_option,
    used_by={
        **dict.fromkeys(("yes", "dry_run", "most", "timeout", *FILTERS), ("everything",)),
        "tenant": ("", "everything"),
    },
)
"""Decorator that adds the options --all and --store to ``cancel``."""
