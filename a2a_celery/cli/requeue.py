"""``celery -A … a2a requeue``: dead letters, and running them again; in the store itself, through no gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import click

from ..app import A2A
from ..dispatch import Publisher, RunOptions
from ..errors import BrokerUnavailable
from ..store import Keys, SyncStore
from ..store.answers import Ended, Missing
from ..store.dispatch import mark_published
from ..store.letters import Alive, Letter, Requeued, read_letter, requeue_task
from ..store.runs import RunRef
from ..store.scan import Listed, listed
from .operating import operated_store
from .selection import Selection, selecting
from .show import state_name, table


@dataclass(frozen=True, slots=True)
class Again:
    """A dead letter that runs again as the task `new`. `published` says whether the broker has it; None: it was
    requeued before. One that is `behind` others of its context has its turn when they are over."""

    dead: str
    new: str
    published: bool | None
    behind: bool = False

    def line(self) -> str:
        """For people."""
        match self.published:
            case None:
                return f"{self.dead} was requeued before, as task {self.new}"
            case True:
                return f"{self.dead} runs again as task {self.new}"
            case False if self.behind:
                return f"{self.dead} runs again as task {self.new}, when those before it in its context are over"
            case False:
                return f"{self.dead} runs again as task {self.new}, when a watcher has published it: no broker now"

    def as_json(self) -> str:
        """For scripts."""
        fields = {"task": self.new, "requeuedFrom": self.dead, "before": self.published is None}
        return json.dumps(fields | ({"published": self.published} if self.published is not None else {}))


class NotRequeued(Exception):
    """Why a task was not requeued, in one line that says what to do."""


@click.command()
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Run all dead letters again, or those that are selected.")
@selecting("agent", "tenant", "owner", "context_id", "since", "until")
@click.option("--limit", type=click.IntRange(min=1), help="So many at most, the oldest first.")
@click.option("--json", "as_lines", is_flag=True, help="A line of JSON for each dead letter, or for each new task.")
@click.pass_context
def requeue(
    context: click.Context,
    /,
    tasks: tuple[str, ...],
    everything: bool,
    limit: int | None,
    as_lines: bool,
    **options: Any,
) -> None:
    """Run again what was lost with its worker; or list it.

    Without TASK or --all it lists the dead letters: tasks that are FAILED because their worker was lost. They stay
    FAILED. Requeued, the message of one becomes a new task in the same context, of the same caller, which refers to the
    old one; that is the task to look at from then on.
    """
    wanted = Selection.taken_from(options)
    if tasks and (everything or limit is not None or wanted != Selection()):
        raise click.UsageError("name tasks, or give --all (and filters): not both")
    with operated_store(context, wanted.agent) as (found, store, keys):
        if not tasks:
            letters = dead_letters(store, keys, wanted)[:limit]
            if not everything:
                _show(letters, as_lines)
                return
            tasks = tuple(letter.ref.task_id for letter in letters)
        failed = False
        requeuer = Requeuer(found, store, keys)
        for task_id in tasks:
            try:
                done = requeuer.requeue(task_id)
                click.echo(done.as_json() if as_lines else done.line())
            except NotRequeued as e:
                failed = True
                click.echo(f"Error: {e}", err=True)
        if not tasks and not as_lines:
            click.echo("no dead letters")
    context.exit(int(failed))


class Requeuer:
    """Requeues dead letters one by one."""

    def __init__(self, found: A2A, store: SyncStore, keys: Keys) -> None:
        self._found = found
        self._store = store
        self._keys = keys
        options = {name: agent.options for name, agent in found.agents.items()}
        self._publisher = Publisher(found.celery, options, found.settings.key_prefix)
        self._broker_away = False

    def requeue(self, task_id: str) -> Again:
        """Makes a new task of the dead letter `task_id`, and publishes its run; once, whoever else does it.

        Raises:
            NotRequeued: it is no dead letter, or its agent is unknown here.
            StoreUnavailable: Redis can't be reached, or refuses.
        """
        while True:
            match self._store.run(read_letter(self._keys, task_id)):
                case Letter() as letter:
                    new = self._made_of(letter)
                    if new is not None:
                        return new
                    # another operator was faster: look again
                case Requeued(new_id):
                    return Again(task_id, new_id, None)
                case Missing():
                    raise NotRequeued(f"no task {task_id}: it never was, or was kept no longer than a2a_retention")
                case Alive(state):
                    raise NotRequeued(f"task {task_id} is {state_name(state)}: it has not ended, look with a2a tail")
                case Ended(state):
                    raise NotRequeued(
                        f"task {task_id} is {state_name(state)}, and not because its worker was lost: only that can be "
                        "requeued; send its message once more instead"
                    )

    def _made_of(self, letter: Letter) -> Again | None:
        """The new task; None if somebody else has made one."""
        dead = letter.task.id
        if letter.agent not in self._found.agents:
            here = ", ".join(self._found.agents)
            raise NotRequeued(
                f"task {dead} is of the agent {letter.agent!r}, this app has {here}: name its app with -A"
            )
        # the route and the call stay; the times that its client gave are over, and so are Celery's retries
        options = replace(RunOptions.from_json(letter.options), not_before=None, not_after=None, retries=0)
        new = str(uuid4())
        retention = self._found.settings.retention
        stored = options.to_json()
        made = self._store.run(requeue_task(self._keys, letter, new, retention=retention, options=stored))
        if made == "gone":
            return None
        if made == "behind" or self._broker_away:
            return Again(dead, new, published=False, behind=made == "behind")
        try:
            self._publisher.publish(letter.agent, new, 1, stored)
        except BrokerUnavailable:
            self._broker_away = True  # the next ones need not wait for it as well
            return Again(dead, new, published=False)
        wait = timedelta(seconds=self._found.settings.redispatch_after)
        again_us = options.again_in(datetime.now(UTC), wait) // timedelta(microseconds=1)
        self._store.run(mark_published(self._keys, RunRef(new, 1), again_us=again_us))
        return Again(dead, new, published=True)


def dead_letters(store: SyncStore, keys: Keys, wanted: Selection) -> list[Listed]:
    """The dead letters that are `wanted`, the oldest first."""
    found = (letter for letter in listed(store, keys, keys.dead_letters) if letter in wanted)
    return sorted(found, key=lambda letter: letter.since_us)


def _show(letters: list[Listed], as_lines: bool) -> None:
    for line in map(_json_line, letters) if as_lines else _people_lines(letters):
        click.echo(line)


def _people_lines(letters: list[Listed]) -> Iterator[str]:
    if not letters:
        yield "no dead letters: no task that failed with its worker waits to be requeued"
        return
    rows = [(x.ref.task_id, x.agent, f"{x.attempt} of {x.max_attempts}", _time(x), x.context_id) for x in letters]
    yield from table(("TASK", "AGENT", "ATTEMPTS", "FAILED (UTC)", "CONTEXT"), rows)
    yield "run one again: a2a requeue TASK; all of them: a2a requeue --all"


def _json_line(letter: Listed) -> str:
    fields: dict[str, Any] = {
        "task": letter.ref.task_id,
        "agent": letter.agent,
        "tenant": letter.scope.tenant,
        "owner": letter.scope.owner,
        "attempts": letter.attempt,
        "maxAttempts": letter.max_attempts,
        "failedAt": _time(letter).replace(" ", "T") + "Z",
        "contextId": letter.context_id,
    }
    return json.dumps(fields, ensure_ascii=False)


def _time(letter: Listed) -> str:
    return datetime.fromtimestamp(letter.since_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
