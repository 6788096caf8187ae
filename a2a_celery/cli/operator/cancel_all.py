"""``celery -A … a2a cancel --all``: cancels open tasks of all callers, in the store."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import update_wrapper
from itertools import chain
from threading import Event
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import click

from ...agents import longest_grace
from ...dispatch import Canvas, Publisher
from ...errors import BrokerUnavailable
from ...lifecycle.outcomes import CANCELED_BY_OPERATOR
from ...lifecycle.states import CANCELED, TERMINAL
from ...store import Keys, Scope, SyncStore
from ...store.admin.scan import TaskSummary, open_tasks, read_states
from ...store.runs.commands import RunRef
from ...store.tasks.commands import request_cancel
from ...store.tasks.results import CanceledNow, CancelRequested
from ..output import Progress, json_line
from .list_tasks import summary_lines, task_fields
from .selection import Selection, operator_store, refuse_filters, refuse_gateway_options, require_agent, selecting

CANCEL_BATCH = 100
"""Number of tasks whose runs are revoked together, and maximum number of agents that stop at the same time."""

BEYOND_GRACE = 5.0
"""Seconds that an agent may take to stop in addition to `cancel_grace`. On prefork, the agent's process is killed
within this time."""

STATE_POLL_INTERVAL = 0.2

ONLY_HERE = ("tenant", "owner", "context_id", "state", "since", "until", "begun")


def with_cancel_all_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --all to ``cancel``. With this option, the command writes to the store instead of calling a
    gateway."""

    def run(context: click.Context, /, everything: bool, **rest: Any) -> Any:
        own = {name: rest.pop(name) for name in ("yes", "dry_run", "most", "timeout")}
        if not everything:
            refuse_filters("--all", rest, ONLY_HERE)
            if any(value not in (None, False) for value in own.values()):
                raise click.UsageError("--yes, --dry-run, --limit and --timeout need --all")
            if rest["task"] is None:
                raise click.UsageError("Missing argument 'TASK': pass one, or --all and filters")
            return command(**{name: value for name, value in rest.items() if name not in ONLY_HERE})
        if rest.pop("store"):
            raise click.UsageError("--store needs TASK: --all reads the store anyway")
        if rest["task"] is not None:
            raise click.UsageError("pass a task, or --all and filters, but not both")
        refuse_gateway_options(context, "--all")
        return _cancel(context, Selection.from_options(rest), as_lines=rest["as_lines"], **own)

    callback = selecting(*ONLY_HERE)(click.pass_context(update_wrapper(run, command)))
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="With --all: the time for each agent to stop. Default: the longest cancel_grace of all agents plus 5.",
        ),
        click.option("--limit", "most", type=click.IntRange(min=1), help="With --all: maximum number of tasks."),
        click.option("--dry-run", is_flag=True, help="With --all: list the tasks, and cancel none."),
        click.option("--yes", is_flag=True, help="With --all: do not ask for confirmation."),
        click.option(
            "--all",
            "everything",
            is_flag=True,
            help="Cancel the open tasks of all callers, for operators. Writes to A2A_STORE_URL; needs no gateway.",
        ),
    ):
        callback = option(callback)
    return callback


class Cancelable(Protocol):
    """Identification of a task in the store."""

    @property
    def ref(self) -> RunRef: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def context_id(self) -> str: ...


T = TypeVar("T", bound=Cancelable)


class Canceller(Generic[T]):
    """Canceller of stored tasks, with the guarantees of CancelTask.

    Args:
        timeout: Seconds to wait for each agent to stop.
    """

    def __init__(self, store: SyncStore, keys: Keys, publisher: Publisher, timeout: float) -> None:
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._timeout = timeout
        self._stopping: dict[str, tuple[T, float]] = {}
        self._revoked: list[str] = []
        self._terminated: list[str] = []
        self.not_revoked = ""
        """Reason why runs were not revoked, or "". A worker that receives a run of a canceled task drops the run."""

    def cancel(self, tasks: Sequence[T]) -> Iterator[tuple[T, str]]:
        """Cancel `tasks`.

        Yields:
            Each task with its outcome: "canceled", "ended" (before the request) or "running" (the agent did not stop in
                time).

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        for number, task in enumerate(tasks, 1):
            outcome = self._request(task)
            if outcome is not None:
                yield task, outcome
            if number % CANCEL_BATCH == 0:
                self._revoke_runs()
            while len(self._stopping) >= CANCEL_BATCH:
                yield from self._poll()
        self._revoke_runs()
        while self._stopping:
            yield from self._poll()

    def _request(self, task: T) -> str | None:
        task_id = task.ref.task_id
        match self._store.run(
            request_cancel(self._keys, task.scope, task_id, task.context_id, text=CANCELED_BY_OPERATOR)
        ):
            case CanceledNow(run, _, canvas):
                if run is not None:
                    self._revoked.append(RunRef(task_id, run).name)
                if canvas:
                    self._terminated += Canvas.from_json(canvas).ids()
                return "canceled"
            case CancelRequested():
                self._stopping[task_id] = task, monotonic() + self._timeout
                return None
            case _:
                return "ended"

    def _poll(self) -> Iterator[tuple[T, str]]:
        states = self._store.run(read_states(self._keys, list(self._stopping)))
        previous_count = len(self._stopping)
        for (task_id, (task, until)), state in zip(list(self._stopping.items()), states, strict=True):
            outcome = "canceled" if state == CANCELED else "ended" if state is None or state in TERMINAL else ""
            if outcome or monotonic() >= until:
                del self._stopping[task_id]
                yield task, outcome or "running"
        if len(self._stopping) == previous_count:
            Event().wait(STATE_POLL_INTERVAL)

    def _revoke_runs(self) -> None:
        for names, terminate in ((self._revoked, False), (self._terminated, True)):
            if names and not self.not_revoked:
                try:
                    self._publisher.revoke(names, terminate=terminate)
                except BrokerUnavailable as e:
                    self.not_revoked = str(e)
            names.clear()


def _cancel(
    context: click.Context,
    selection: Selection,
    *,
    as_lines: bool,
    yes: bool,
    dry_run: bool,
    most: int | None,
    timeout: float | None,
) -> None:
    with operator_store(context, None) as (a2a, store, keys):
        tasks = _selected_tasks(store, keys, selection, most)
        require_agent(a2a, selection.agent, has_tasks=bool(tasks))
        if dry_run or not tasks:
            _show(tasks, as_lines)
            return
        _confirm(tasks, yes)
        publisher = Publisher(a2a.celery, {})
        grace = longest_grace(a2a.agents.values(), a2a.settings)
        wait = grace + BEYOND_GRACE if timeout is None else timeout
        canceller = Canceller[TaskSummary](store, keys, publisher, wait)
        outcomes: Counter[str] = Counter()
        running_tasks: list[TaskSummary] = []
        with Progress("Cancelling", len(tasks)) as progress:
            for task, outcome in canceller.cancel(tasks):
                outcomes[outcome] += 1
                running_tasks += [task] * (outcome == "running")
                if as_lines:
                    progress.echo(json_line(task_fields(task) | {"outcome": outcome}))
                progress.advance()
    if canceller.not_revoked:
        click.echo(f"runs were not revoked, and workers will drop them on receipt: {canceller.not_revoked}", err=True)
    if not as_lines:
        became = f"{outcomes['canceled']} canceled, {outcomes['ended']} had ended, {outcomes['running']} still running"
        click.echo(f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {became}")
        for line in summary_lines(running_tasks) if running_tasks else ():
            click.echo(line)
        if running_tasks:
            click.echo("these agents did not stop in time: see a2a list --stuck and a2a doctor")
    context.exit(int(bool(running_tasks)))


def _selected_tasks(store: SyncStore, keys: Keys, selection: Selection, most: int | None) -> list[TaskSummary]:
    """Return the open tasks that match `selection`, or the first `most` of them.

    The lists are read twice, because the first reading misses a task that moves to a list that was already read.
    """
    tasks: dict[str, TaskSummary] = {}
    for task in chain(open_tasks(store, keys), open_tasks(store, keys)):
        if most is not None and len(tasks) == most:
            break
        if task in selection:
            tasks.setdefault(task.ref.task_id, task)
    return list(tasks.values())


def _show(tasks: Sequence[TaskSummary], as_lines: bool) -> None:
    if as_lines:
        for task in tasks:
            click.echo(json_line(task_fields(task) | {"outcome": "dry-run"}))
    elif not tasks:
        click.echo("no open task matches")
    else:
        for line in summary_lines(tasks):
            click.echo(line)
        click.echo(f"{_count_text(tasks)} would be cancelled")


def _confirm(tasks: Sequence[TaskSummary], yes: bool) -> None:
    if yes:
        return
    if not _is_interactive():
        raise click.UsageError(
            f"{_count_text(tasks)} would be cancelled: there is no terminal to confirm, so pass --yes"
        )
    click.confirm(f"Cancel {_count_text(tasks)}?", abort=True, err=True)


def _is_interactive() -> bool:
    return sys.stdin.isatty()


def _count_text(tasks: Sequence[TaskSummary]) -> str:
    by_agent = Counter(task.agent for task in tasks)
    agents = ", ".join(f"{many} of {agent}" for agent, many in by_agent.most_common())
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({agents})"
