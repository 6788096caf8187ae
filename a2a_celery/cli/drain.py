"""``celery -A … a2a drain``: takes workers out of service in good order; by Celery's remote control."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

import click
from celery import Celery

from ..dispatch import queue_of
from ..store.installation import server_of
from .broker_server import broker_server
from .location import prepared
from .operating import operated_store
from .survey import reports

ANSWER = 3.0
"""Seconds that a worker has to answer."""

LOOK_EVERY = 0.5
GONE_WITHIN = 30.0
"""Seconds that a worker which has nothing to do may take to end."""


@dataclass
class Drained:
    """One worker, and what is left in it. `state`: "busy", "drained", "silent", "restarted", "shut_down",
    "undone"."""

    node: str
    queues: list[str]
    handed_back: int = 0
    runs: list[str] = field(default_factory=list)
    tasks: int = 0
    state: str = "busy"

    def line(self) -> str:
        """For people."""
        queues = ", ".join(self.queues) or "no queue"
        match self.state:
            case "undone":
                return f"{self.node}: consumes {queues} again"
            case "shut_down":
                return f"{self.node}: is shut down"
            case "drained":
                return f"{self.node}: takes nothing from {queues}, and has nothing left"
            case "restarted":
                return f"{self.node}: was started again, and consumes {queues}: drain it once more"
            case "silent":
                return f"{self.node}: does not answer: it is of the solo pool and at work, or of an older release"
        left = [f"run {run}" for run in self.runs] + [f"{self.tasks} other tasks"] * bool(self.tasks)
        return f"{self.node}: takes nothing from {queues}; still at work: {', '.join(left)}"

    def as_json(self) -> str:
        """For scripts."""
        fields = {
            "worker": self.node,
            "state": self.state,
            "queues": self.queues,
            "handedBack": self.handed_back,
            "running": self.runs,
            "otherTasks": self.tasks,
        }
        return json.dumps(fields, ensure_ascii=False)


@click.command()
@click.option("--worker", "nodes", multiple=True, metavar="NODE", help="The worker celery@host, as doctor names it.")
@click.option("--host", "hosts", multiple=True, help="All workers of this host.")
@click.option("--queue", "queues", multiple=True, help="This queue, at all workers or those that are named.")
@click.option("--agent", "agents", multiple=True, help="The queue of this agent, as --queue.")
@click.option("--all", "everything", is_flag=True, help="All workers of this deployment.")
@click.option(
    "--timeout", default=300.0, show_default=True, type=click.FloatRange(min=0), help="Seconds to wait for what runs."
)
@click.option("--shutdown", is_flag=True, help="End the workers that have nothing left.")
@click.option("--undo", is_flag=True, help="Let them consume again.")
@click.option("--json", "as_lines", is_flag=True, help="A line of JSON for each worker.")
@click.pass_context
def drain(context: click.Context, /, timeout: float, shutdown: bool, undo: bool, as_lines: bool, **which: Any) -> None:
    """Take workers out of service, in good order.

    They take nothing more from their queues, what they have fetched runs elsewhere at once, and this command waits
    until what they have begun is over. Exit code 1 if something is left then: it is said, and goes on. A worker that is
    started again consumes again.
    """
    if not any(which.values()):
        raise click.UsageError("say which: --worker, --host, --queue, --agent or --all")
    if which["everything"] and any(which[name] for name in ("nodes", "hosts", "queues", "agents")):
        raise click.UsageError("--all is all workers: leave out the others")
    if shutdown and (undo or which["queues"] or which["agents"]):
        raise click.UsageError("--shutdown ends whole workers: leave out --undo, --queue and --agent")
    found = prepared(context)
    serves = {name: queue_of(found.celery, agent) for name, agent in found.agents.items()}
    for agent in which["agents"]:
        if serves.get(agent) is None:
            known = ", ".join(name for name, queue in serves.items() if queue)
            raise click.ClickException(f"no agent {agent!r} that has a queue; this app has {known or 'none'}")
    broker = broker_server(found.celery)
    if isinstance(broker, str):
        raise click.ClickException(f"{broker}: is the broker up? See CELERY_BROKER_URL")
    # all are asked when the others matter: who else is meant, and who else reads a queue
    only_these = not (which["hosts"] or which["queues"] or which["agents"]) and (undo or as_lines)
    said = reports(found.celery, ANSWER, which["nodes"] if only_these else ())
    with operated_store(context, None) as (_, store, _keys):
        chosen = Choice.of(said, which, serves, server_of(store).identity, found.settings.key_prefix)
    for node in chosen.strangers:
        click.echo(f"{node}: does not say what its store is; if it is of this deployment, --worker names it", err=True)
    drainer = Drainer(found.celery, chosen)
    if undo:
        drainer.undo()
    else:
        if not as_lines:
            for line in chosen.consequences():
                click.echo(line)
        drainer.drain()
        click.echo(f"waiting for what they have begun, {timeout:g} s at most", err=True)
        drainer.wait(timeout)
        if shutdown:
            drainer.shut_down()
    for worker in drainer.workers.values():
        click.echo(worker.as_json() if as_lines else worker.line())
    wanted = "undone" if undo else "shut_down" if shutdown else "drained"
    context.exit(int(bool(chosen.strangers) or any(worker.state != wanted for worker in drainer.workers.values())))


@dataclass(frozen=True)
class Choice:
    """Which workers are meant, and which of their queues; None: all."""

    nodes: tuple[str, ...]
    queues: frozenset[str] | None
    named: frozenset[str]
    """Agents that were named."""

    reports: Mapping[str, Mapping[str, Any]]
    """Of all workers that answered."""

    serves: Mapping[str, str | None]
    """The queue of each agent."""

    strangers: tuple[str, ...] = ()
    """Workers that could be another deployment's: their store can't be reached, or their settings can't be used."""

    @classmethod
    def of(
        cls,
        said: Mapping[str, Mapping[str, Any]],
        which: Mapping[str, Any],
        serves: Mapping[str, str | None],
        store: str,
        prefix: str,
    ) -> Choice:
        """What the options `which` mean, where workers report what they `said`. Those with another `store`, or another
        key prefix in it, belong to another deployment at the same broker; who does not say is meant if it is named.

        Raises:
            click.ClickException: they name what is not there.
        """
        ours, strangers = {}, []
        for node, report in sorted(said.items()):
            theirs = report.get("store", {}).get("identity"), report.get("settings", {}).get("key_prefix")
            if "pool" not in report:
                continue
            if node in which["nodes"] or theirs == (store, prefix):
                ours[node] = report
            elif None in theirs:
                strangers.append(node)
        queues = {*which["queues"], *(str(serves[agent]) for agent in which["agents"])}
        for node in which["nodes"]:
            if node not in ours:
                raise click.ClickException(f"{node} does not answer; there are {', '.join(sorted(ours)) or 'none'}")
        named = bool(which["nodes"] or which["hosts"])

        def is_meant(node: str) -> bool:
            consumed = {*said[node]["queues"], *said[node].get("drained", ())}
            is_named = not named or node in which["nodes"] or node.partition("@")[2] in which["hosts"]
            return is_named and (not queues or bool(queues & consumed))

        nodes = tuple(filter(is_meant, ours))
        if not nodes:
            what = f"that consumes {', '.join(sorted(queues))}" if queues else "of those"
            raise click.ClickException(f"no worker {what} answers; there are {', '.join(sorted(ours)) or 'none'}")
        return cls(
            nodes,
            frozenset(queues) or None,
            frozenset(which["agents"]),
            ours,
            serves,
            tuple(filter(is_meant, strangers)),
        )

    def leaving(self, node: str) -> list[str]:
        """The queues that a worker leaves."""
        return [name for name in self.reports[node]["queues"] if self.queues is None or name in self.queues]

    def consequences(self) -> Iterator[str]:
        """What else waits now, in lines for people."""
        left = {name for node in self.nodes for name in self.leaving(node)}
        for queue in sorted(left):
            sharing = sorted(name for name, theirs in self.serves.items() if theirs == queue and name not in self.named)
            others = [
                node for node, report in self.reports.items() if queue in report["queues"] and node not in self.nodes
            ]
            if self.queues is not None:
                also = f" also serves {', '.join(sharing)}, and" if sharing else " also serves"
                yield f"the queue {queue}{also} whatever other Celery tasks are sent to it: these wait too"
            if not others:
                yield f"no other worker that reports consumes {queue}: what is sent there waits until --undo"


class Drainer:
    """Talks with the chosen workers."""

    def __init__(self, app: Celery, chosen: Choice) -> None:
        self._app = app
        self._arguments = {"queues": None if chosen.queues is None else sorted(chosen.queues)}
        self.workers = {node: Drained(node, chosen.leaving(node), state="silent") for node in chosen.nodes}

    def drain(self) -> None:
        """Tells them to take nothing more."""
        for node, said in self._ask("a2a_drain", tuple(self.workers), self._arguments):
            worker = self.workers[node]
            worker.queues, worker.handed_back, worker.state = said["queues"], said["handed_back"], "busy"

    def undo(self) -> None:
        """Tells them to consume again."""
        for node, said in self._ask("a2a_undrain", tuple(self.workers), self._arguments):
            self.workers[node].queues, self.workers[node].state = said["queues"], "undone"

    def wait(self, timeout: float) -> None:
        """Returns when none has anything left, or after `timeout` seconds."""
        until = monotonic() + timeout
        idle: set[str] = set()
        while True:
            silent = set(self._in("busy", "silent"))
            for node, said in self._ask("a2a_busy", tuple(silent)):
                silent.discard(node)
                worker = self.workers[node]
                worker.runs, worker.tasks, worker.state = said["runs"], said["tasks"], "busy"
                if not {*worker.queues} <= {*said["drained"], *said["leaving"]}:
                    worker.state = "restarted"
                elif worker.runs or worker.tasks or said["leaving"]:
                    idle.discard(node)
                elif node in idle:
                    worker.state = "drained"
                else:  # a run that begins at this very moment is not seen at once
                    idle.add(node)
            for node in silent:
                self.workers[node].state = "busy" if self.workers[node].runs else "silent"
            if not self._in("busy", "silent") or monotonic() >= until:
                return
            Event().wait(LOOK_EVERY)

    def shut_down(self) -> None:
        """Ends those that have nothing left, and waits until they are gone."""
        leaving = self._in("drained")
        if not leaving:
            return
        self._app.control.shutdown(destination=list(leaving))
        until = monotonic() + GONE_WITHIN
        while leaving and monotonic() < until:
            answering = {node for node, _ in self._ask("ping", leaving)}
            for node in set(leaving) - answering:
                self.workers[node].state = "shut_down"
            leaving = tuple(node for node in leaving if node in answering)

    def _in(self, *states: str) -> tuple[str, ...]:
        return tuple(node for node, worker in self.workers.items() if worker.state in states)

    def _ask(
        self, command: str, nodes: Sequence[str], arguments: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, Any]]:
        """What each answers that does in time."""
        answers = self._app.control.broadcast(
            command, arguments=arguments, destination=list(nodes), reply=True, timeout=ANSWER, limit=len(nodes)
        )
        for answer in answers or []:
            for node, said in answer.items():
                if node in nodes and "error" not in said:
                    yield node, said
