"""``a2a get | tail | cancel TASK --store``: access to a single task of any caller, in the store.

A gateway with authentication shows a task only to its owner, and an operator does not have the owner's credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import update_wrapper
from typing import Any

import click
from a2a.types import StreamResponse, Task
from a2a.utils.errors import TaskNotFoundError

from ...agents import longest_grace
from ...app import A2A
from ...dispatch import Publisher
from ...lifecycle.references import Scope
from ...lifecycle.states import TERMINAL
from ...operations.service import TaskService
from ...store import Keys, SyncStore
from ...store.runs.release import Steps, read_steps
from ...store.tasks.commands import read_task
from ...store.tasks.dead_letters import AlreadyRequeued, DeadLetter, read_dead_letter
from ...submission import Submissions
from ..output import EventPrinter, as_json, state_name, task_lines
from .cancel_all import BEYOND_GRACE, Canceller
from .selection import missing_task, operator_store, refuse_gateway_options, run_on_service

StoredTaskCommand = Callable[[click.Context, str, str | None, bool], None]
"""Function that receives the context of a command, the id of a task, its agent or None, and True for JSON."""

HELP = {
    "store": "Use the task of any caller, for operators.",
    "execution": "Show the steps of its runs: state, time, duration and worker.",
    "tree": "Show its parents and child tasks with their states.",
}
"""Help of each option of `with_store_options`."""


def with_store_options(**functions: StoredTaskCommand) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds an option to a command for each of `functions`. With this option, the command calls
    the function instead of a gateway."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(context: click.Context, /, **rest: Any) -> Any:
            chosen = [name for name in functions if rest.pop(name)]
            if not chosen:
                return command(**rest)
            if len(chosen) > 1:
                raise click.UsageError(f"--{chosen[0]} and --{chosen[1]} exclude each other")
            refuse_gateway_options(context, f"--{chosen[0]}")
            return functions[chosen[0]](context, rest["task"], rest["agent"], rest["as_lines"])

        callback = click.pass_context(update_wrapper(run, command))
        for name in reversed(functions):
            text = f"{HELP[name]} Reads A2A_STORE_URL; needs no gateway."
            callback = click.option(f"--{name}", is_flag=True, help=text)(callback)
        return callback

    return decorate


def show_task(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print a task from the store and, for a dead letter, how to run the task again."""
    with operator_store(context, agent) as (a2a, store, keys):
        task, steps = _read(a2a, store, keys, task_id, agent)
        _show(task, as_lines, steps.agent)
        if as_lines:
            return
        match store.run(read_dead_letter(keys, task_id, from_start=True)):
            case DeadLetter():
                click.echo(f"run it again: a2a requeue {task_id}")
            case AlreadyRequeued(new_id):
                click.echo(f"requeued as task {new_id}")


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
        task, steps = _read(a2a, store, keys, task_id, agent)
        if task.status.state in TERMINAL:
            raise click.ClickException(f"task {task_id} is {state_name(task.status.state)}: it has ended")
        timeout = longest_grace(a2a.agents.values(), a2a.settings) + BEYOND_GRACE
        target = (task_id, steps.scope, steps.context_id)

        async def cancel(service: TaskService) -> str:
            [outcome] = [outcome async for _, outcome in Canceller(service, timeout).cancel([target])]
            return outcome

        outcome = run_on_service(a2a, cancel)
        _show(_read(a2a, store, keys, task_id, agent)[0], as_lines)
        if outcome == "running":
            raise click.ClickException(
                f"the agent of task {task_id} did not stop in time: see a2a list --stuck, and a2a doctor"
            )


def _events(a2a: A2A, scope: Scope, task_id: str) -> Iterator[StreamResponse]:
    submissions = Submissions(a2a.agents, lambda: a2a.settings, lambda: Publisher(a2a.celery, {}))
    with closing(submissions):
        yield from submissions.handle(scope.agent, task_id, owner=scope.owner, tenant=scope.tenant).events()


def _read(a2a: A2A, store: SyncStore, keys: Keys, task_id: str, agent: str | None) -> tuple[Task, Steps]:
    """Return a task and its steps.

    Raises:
        click.ClickException: The task does not exist, or belongs to an agent other than `agent`.
    """
    snapshot, steps = store.run(read_task(keys, None, task_id)), store.run(read_steps(keys, task_id))
    if snapshot is None or steps is None or agent not in (None, steps.agent):
        raise missing_task(a2a, task_id, agent)
    return snapshot[0], steps


def _show(task: Task, as_lines: bool, agent: str = "") -> None:
    click.echo(as_json(task) if as_lines else task_lines(task, agent))
