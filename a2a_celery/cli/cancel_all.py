"""``celery -A … a2a cancel --all``: everybody's tasks that have not ended, or some of them; in the store, through no
gateway."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import update_wrapper
from itertools import islice
from threading import Event
from time import monotonic
from typing import Any

import click

from ..dispatch import Canvas, Publisher
from ..errors import BrokerUnavailable
from ..lifecycle.states import CANCELED, TERMINAL
from ..store import Keys, SyncStore
from ..store.answers import CancelAsked, CanceledNow
from ..store.runs import RunRef
from ..store.scan import Listed, open_tasks, read_states
from ..store.tasks import request_cancel
from .everybody import fields_of, refuse_gateway, task_rows
from .operating import operated_store
from .selection import Selection, refuse_without, selecting

BATCH = 100
"""Tasks that are cancelled before workers are told, in one message, to drop their runs; and so many agents at most are
being stopped at a time."""

BEYOND_GRACE = 5.0
"""Seconds beside `cancel_grace` that an agent's stop may take: its process is ended by then, where there is force."""

LOOK_EVERY = 0.2

ONLY_HERE = ("tenant", "owner", "context_id", "state", "since", "until", "begun")


def or_all(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the ``cancel`` command the option --all, which asks the store instead of a gateway."""

    def run(context: click.Context, /, everything: bool, **rest: Any) -> Any:
        own = {name: rest.pop(name) for name in ("yes", "dry_run", "most", "timeout")}
        if not everything:
            refuse_without("--all", rest, ONLY_HERE)
            if any(value not in (None, False) for value in own.values()):
                raise click.UsageError("--yes, --dry-run, --limit and --timeout go with --all")
            if rest["task"] is None:
                raise click.UsageError("Missing argument 'TASK': name one, or give --all and filters")
            return command(**{name: value for name, value in rest.items() if name not in ONLY_HERE})
        if rest.pop("store"):
            raise click.UsageError("--store goes with TASK: --all asks the store anyway")
        if rest["task"] is not None:
            raise click.UsageError("name a task, or give --all and filters: not both")
        refuse_gateway("--all", rest)
        return _cancel(context, Selection.taken_from(rest), as_lines=rest["as_lines"], **own)

    callback = selecting(*ONLY_HERE)(click.pass_context(update_wrapper(run, command)))
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="With --all: how long each agent has to stop. Not given: A2A_CANCEL_GRACE and a moment.",
        ),
        click.option("--limit", "most", type=click.IntRange(min=1), help="With --all: so many tasks at most."),
        click.option("--dry-run", is_flag=True, help="With --all: only show which they are."),
        click.option("--yes", is_flag=True, help="With --all: don't ask, as scripts can't answer."),
        click.option(
            "--all",
            "everything",
            is_flag=True,
            help="Everybody's tasks that have not ended, for operators. Writes to A2A_STORE_URL, needs no gateway.",
        ),
    ):
        callback = option(callback)
    return callback


class Canceller:
    """Cancels tasks one by one, as CancelTask does: the same promises, and the same words to their clients."""

    def __init__(self, store: SyncStore, keys: Keys, publisher: Publisher, patience: float) -> None:
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._patience = patience
        self._stopping: dict[str, tuple[Listed, float]] = {}
        self._revoked: list[str] = []
        self._terminated: list[str] = []
        self.not_revoked = ""
        """Why workers were not told to drop runs, if they were not: they do so when they come to them."""

    def cancel(self, tasks: Sequence[Listed]) -> Iterator[tuple[Listed, str]]:
        """Each task as soon as it is known what became of it: "canceled", "ended" (otherwise, meanwhile), or "running":
        its agent has not stopped in time.

        Raises:
            StoreUnavailable: Redis can't be reached, or refuses.
        """
        for number, task in enumerate(tasks, 1):
            outcome = self._ask(task)
            if outcome is not None:
                yield task, outcome
            if number % BATCH == 0:
                self._tell_workers()
            while len(self._stopping) >= BATCH:
                yield from self._look()
        self._tell_workers()
        while self._stopping:
            yield from self._look()

    def _ask(self, task: Listed) -> str | None:
        task_id = task.ref.task_id
        match self._store.run(request_cancel(self._keys, task.scope, task_id, task.context_id)):
            case CanceledNow(run, _, canvas):
                if run is not None:
                    self._revoked.append(RunRef(task_id, run).name)
                if canvas:
                    self._terminated += Canvas.from_json(canvas).ids()
                return "canceled"
            case CancelAsked():
                self._stopping[task_id] = task, monotonic() + self._patience
                return None
            case _:
                return "ended"

    def _look(self) -> Iterator[tuple[Listed, str]]:
        states = self._store.run(read_states(self._keys, list(self._stopping)))
        before = len(self._stopping)
        for (task_id, (task, until)), state in zip(list(self._stopping.items()), states, strict=True):
            outcome = "canceled" if state == CANCELED else "ended" if state is None or state in TERMINAL else ""
            if outcome or monotonic() >= until:
                del self._stopping[task_id]
                yield task, outcome or "running"
        if len(self._stopping) == before:
            Event().wait(LOOK_EVERY)

    def _tell_workers(self) -> None:
        for names, terminate in ((self._revoked, False), (self._terminated, True)):
            if names and not self.not_revoked:
                try:
                    self._publisher.revoke(names, terminate=terminate)
                except BrokerUnavailable as e:
                    self.not_revoked = str(e)
            names.clear()


def _cancel(
    context: click.Context,
    wanted: Selection,
    *,
    as_lines: bool,
    yes: bool,
    dry_run: bool,
    most: int | None,
    timeout: float | None,
) -> None:
    with operated_store(context, None) as (found, store, keys):
        tasks = list(islice((task for task in open_tasks(store, keys) if task in wanted), most))
        if not tasks and wanted.agent is not None and wanted.agent not in found.agents:
            raise click.ClickException(f"no agent {wanted.agent!r} in this app, and no such task of one")
        if dry_run or not tasks:
            _show(tasks, as_lines)
            return
        _confirm(tasks, yes)
        publisher = Publisher(found.celery, {})
        patience = found.settings.cancel_grace + BEYOND_GRACE if timeout is None else timeout
        canceller = Canceller(store, keys, publisher, patience)
        outcomes: Counter[str] = Counter()
        left: list[Listed] = []
        for task, outcome in canceller.cancel(tasks):
            outcomes[outcome] += 1
            left += [task] * (outcome == "running")
            if as_lines:
                click.echo(json.dumps(fields_of(task) | {"outcome": outcome}, ensure_ascii=False))
            _progress(outcomes.total(), len(tasks))
    if canceller.not_revoked:
        click.echo(
            f"workers were not told, and drop the runs when they come to them: {canceller.not_revoked}", err=True
        )
    if not as_lines:
        became = f"{outcomes['canceled']} canceled, {outcomes['ended']} had ended, {outcomes['running']} still running"
        click.echo(f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {became}")
        for line in task_rows(left) if left else ():
            click.echo(line)
        if left:
            click.echo("their agents were asked to stop, and did not in time: see a2a list --stuck, and a2a doctor")
    context.exit(int(bool(left)))


def _show(tasks: Sequence[Listed], as_lines: bool) -> None:
    if as_lines:
        for task in tasks:
            click.echo(json.dumps(fields_of(task) | {"outcome": "none"}, ensure_ascii=False))
    elif not tasks:
        click.echo("no such task that has not ended")
    else:
        for line in task_rows(tasks):
            click.echo(line)
        click.echo(f"{_counted(tasks)} would be cancelled")


def _confirm(tasks: Sequence[Listed], yes: bool) -> None:
    if yes:
        return
    if not _somebody_is_there():
        raise click.UsageError(f"{_counted(tasks)} would be cancelled: give --yes, for nobody can be asked here")
    click.confirm(f"Cancel {_counted(tasks)}?", abort=True, err=True)


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _counted(tasks: Sequence[Listed]) -> str:
    by_agent = Counter(task.agent for task in tasks)
    said = ", ".join(f"{many} of {agent}" for agent, many in by_agent.most_common())
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({said})"


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done} of {of}", nl=done == of, err=True)
