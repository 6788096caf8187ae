"""``celery -A … a2a drain``: takes workers out of service through Celery's remote control."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

import click
from celery import Celery

from ...dispatch import ask_workers, queue_of, worker_reports
from ...integrations.kombu import broker_error_text
from ...store.admin.start_check import server_of
from ..app_loader import load_configured_a2a
from ..doctor.broker_server import require_broker, unavailable_broker
from ..output import json_line, json_object
from .selection import operator_store

REPLY_TIMEOUT = 3.0
"""Seconds to wait for a worker's reply."""

WORKER_POLL_INTERVAL = 0.5
SHUTDOWN_TIMEOUT = 30.0
"""Seconds that an idle worker may take to shut down."""


TEXTS = {
    "busy": "does not consume {queues}; unfinished: {work}",
    "drained": "does not consume {queues}, and has no work left",
    "silent": "does not reply: it runs a task on the solo pool, or has an older release",
    "restarted": "was restarted, and consumes {queues}: drain it without --shutdown, or stop it in its process manager",
    "shut_down": "is shut down",
    "undone": "consumes {queues} again",
}
"""Text about a worker, by the state of the worker."""


@dataclass
class Drained:
    """Worker that is being drained, and its remaining work.

    Attributes:
        worker: Celery node name of the worker.
        state: State, a key of `TEXTS`. A restarted worker consumes its queues again.
        queues: Queues that the worker must stop consuming or, after `Drainer.undo`, consumes again.
        returned: Number of prefetched messages that the worker returned to the queue.
        running: Names of the active runs of agents.
        other_tasks: Number of other active or prefetched tasks.
    """

    worker: str
    state: str
    queues: list[str]
    returned: int = 0
    running: list[str] = field(default_factory=list)
    other_tasks: int = 0

    def line(self) -> str:
        """Return a readable line about the worker."""
        work = [f"run {run}" for run in self.running] + [f"{self.other_tasks} other tasks"] * bool(self.other_tasks)
        text = TEXTS[self.state].format(queues=", ".join(self.queues) or "no queue", work=", ".join(work))
        return f"{self.worker}: {text}"


def deployment_of(report: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the identity of the store and the key prefix in a worker's report. None stands for a missing value."""
    return report.get("store", {}).get("identity"), report.get("settings", {}).get("key_prefix")


@click.command()
@click.option("--worker", "nodes", multiple=True, metavar="NODE", help="The worker celery@host, as doctor names it.")
@click.option("--host", "hosts", multiple=True, help="All workers of this host; not with --worker.")
@click.option("--queue", "queues", multiple=True, help="Drain only this queue, on the selected workers or on all.")
@click.option("--agent", "agents", multiple=True, help="Drain only the queue of this agent.")
@click.option("--all", "everything", is_flag=True, help="All workers of this deployment.")
@click.option(
    "--timeout", default=300.0, show_default=True, type=click.FloatRange(min=0), help="Seconds to wait for active runs."
)
@click.option("--shutdown", is_flag=True, help="Shut down the workers that are drained.")
@click.option("--undo", is_flag=True, help="Let the workers consume again.")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per worker.")
@click.pass_context
def drain(
    context: click.Context, /, timeout: float, shutdown: bool, undo: bool, as_lines: bool, **filters: Any
) -> None:
    """Take workers out of service.

    The workers stop consuming, and return prefetched runs to the queue at once. This command waits until their active
    runs have ended. Runs that are left at the timeout are listed and continue, and the exit code is 1. A restarted
    worker consumes again.
    """
    if not any(filters.values()):
        raise click.UsageError("choose workers with --worker, --host, --queue, --agent or --all")
    if filters["everything"] and any(filters[name] for name in ("nodes", "hosts", "queues", "agents")):
        raise click.UsageError("--all selects all workers: leave out the other filters")
    if filters["hosts"] and filters["nodes"]:
        raise click.UsageError("--host selects all workers of a host: leave out --worker")
    if shutdown and (undo or filters["queues"] or filters["agents"]):
        raise click.UsageError("--shutdown ends workers: leave out --undo, --queue and --agent")
    a2a = load_configured_a2a(context)
    serves = {name: queue_of(a2a.celery, agent) for name, agent in a2a.agents.items()}
    for agent in filters["agents"]:
        if serves.get(agent) is None:
            names = ", ".join(name for name, queue in serves.items() if queue)
            raise click.ClickException(f"no agent {agent!r} that has a queue; this app has {names or 'none'}")
    require_broker(a2a.celery)
    # query all workers if other workers may match the options, or consume the same queues
    only_these = not (filters["hosts"] or filters["queues"] or filters["agents"]) and (undo or as_lines)
    reply = worker_reports(a2a.celery, REPLY_TIMEOUT, filters["nodes"] if only_these else ())
    with operator_store(context, None) as (_, store, _keys):
        choice = Choice.of(reply, filters, serves, server_of(store).identity, a2a.settings.key_prefix)
    for node in choice.strangers:
        click.echo(
            f"{node}: does not report its store; if it belongs to this deployment, name it with --worker", err=True
        )
    drainer = Drainer(a2a.celery, choice)
    if undo:
        drainer.undo()
    else:
        if not as_lines:
            for line in choice.consequences(is_shutdown=shutdown):
                click.echo(line)
        drainer.drain()
        click.echo(f"waiting up to {timeout:g} s for their active runs", err=True)
        drainer.wait(timeout)
        if shutdown:
            drainer.shut_down()
    if drainer.error:
        click.echo(drainer.error, err=True)
    for worker in drainer.workers.values():
        click.echo(json_line(json_object(worker)) if as_lines else worker.line())
    target = "undone" if undo else "shut_down" if shutdown else "drained"
    context.exit(int(bool(choice.strangers) or any(worker.state != target for worker in drainer.workers.values())))


@dataclass(frozen=True)
class Choice:
    """Selected workers and queues. `queues` is None if all queues are selected."""

    nodes: tuple[str, ...]
    queues: frozenset[str] | None
    agent_names: frozenset[str]
    """Agents that were named on the command line."""

    reports: Mapping[str, Mapping[str, Any]]
    """Reports of all workers of this deployment that replied."""

    serves: Mapping[str, str | None]
    """Queue of each agent."""

    strangers: tuple[str, ...] = ()
    """Workers that may belong to another deployment, because they report no store or key prefix."""

    @classmethod
    def of(
        cls,
        reply: Mapping[str, Mapping[str, Any]],
        filters: Mapping[str, Any],
        serves: Mapping[str, str | None],
        store: str,
        prefix: str,
    ) -> Choice:
        """Select workers by the options `filters` from the reports of all workers.

        Workers with a different `store` or key `prefix` belong to another deployment on the same broker. A worker that
        reports no store or no key prefix is selected only by name.

        Raises:
            click.ClickException: A worker in the options does not reply, or no worker matches the options.
        """
        reports = {node: report for node, report in sorted(reply.items()) if "pool" in report}
        deployments = {node: deployment_of(report) for node, report in reports.items()}
        ours = [node for node in reports if node in filters["nodes"] or deployments[node] == (store, prefix)]
        strangers = [node for node in reports if node not in ours and None in deployments[node]]
        queues = {*filters["queues"], *(str(serves[agent]) for agent in filters["agents"])}

        def is_meant(node: str) -> bool:
            worker_queues = {*reply[node]["queues"], *reply[node].get("drained", ())}
            is_named = node in filters["nodes"] or node.partition("@")[2] in filters["hosts"]
            is_any = not (filters["nodes"] or filters["hosts"])
            return (is_any or is_named) and (not queues or bool(queues & worker_queues))

        nodes = tuple(filter(is_meant, ours))
        missing = [f"{node} does not reply" for node in filters["nodes"] if node not in ours]
        if not nodes:
            description = f"that consumes {', '.join(sorted(queues))}" if queues else "of those"
            missing.append(f"no worker {description} replies")
        if missing:
            raise click.ClickException(f"{missing[0]}; the workers are {', '.join(ours) or 'none'}")
        return cls(
            nodes,
            frozenset(queues) or None,
            frozenset(filters["agents"]),
            {node: reports[node] for node in ours},
            serves,
            tuple(filter(is_meant, strangers)),
        )

    def queues_to_leave(self, node: str) -> list[str]:
        """Return the queues that a worker must stop consuming."""
        return [name for name in self.reports[node]["queues"] if self.queues is None or name in self.queues]

    def consequences(self, *, is_shutdown: bool) -> Iterator[str]:
        """Yield warnings about other work that has to wait because of the drain.

        Args:
            is_shutdown: True if the drained workers will be shut down.
        """
        queues_to_leave = {name for node in self.nodes for name in self.queues_to_leave(node)}
        for queue in sorted(queues_to_leave):
            agents = {name for name, source in self.serves.items() if source == queue}
            sharing = sorted(agents - self.agent_names)
            consuming = {node for node, report in self.reports.items() if queue in report["queues"]}
            if self.queues is not None:
                sharing_text = f" also serves {', '.join(sharing)}, and" if sharing else " also serves"
                yield f"the queue {queue}{sharing_text} other Celery tasks: they wait too"
            if consuming <= {*self.nodes}:
                end = f"a worker consumes {queue} again" if is_shutdown else "--undo"
                yield f"no other worker that reports consumes {queue}: runs sent to it wait until {end}"


class Drainer:
    """Controller that drains the selected workers through Celery's remote control.

    Args:
        app: App of the workers.
        choice: Selected workers.
        poll_interval: Seconds between two queries of the workers.

    Attributes:
        error: Reason why the broker was unavailable at the end of `wait`, or "".
    """

    def __init__(self, app: Celery, choice: Choice, *, poll_interval: float = WORKER_POLL_INTERVAL) -> None:
        self._app = app
        self._poll_interval = poll_interval
        self._arguments = {"queues": None if choice.queues is None else sorted(choice.queues)}
        self.error = ""
        self.workers = {node: Drained(node, "silent", choice.queues_to_leave(node)) for node in choice.nodes}

    def drain(self) -> None:
        """Make the workers stop consuming."""
        for worker, reply in self._ask("a2a_drain", tuple(self.workers), self._arguments):
            worker.queues, worker.returned, worker.state = reply["queues"], reply["returned"], "busy"

    def undo(self) -> None:
        """Make the workers consume again."""
        for worker, reply in self._ask("a2a_undrain", tuple(self.workers), self._arguments):
            # the list is empty if the worker was restarted
            worker.queues, worker.state = reply["queues"] or worker.queues, "undone"

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until no worker has work left, also while the broker is unavailable.

        A worker counts as drained after two replies without work, even if the timeout has passed after the first.
        """
        until = monotonic() + timeout
        idle: set[str] = set()
        while True:
            silent = set(self._in("busy", "silent"))
            try:
                replies, self.error = self._ask("a2a_busy", tuple(silent)), ""
            except click.ClickException as e:  # drained workers stay drained while the broker is restarted
                replies, self.error = [], e.message
            for worker, reply in replies:
                silent.discard(worker.worker)
                worker.running, worker.other_tasks, worker.state = reply["runs"], reply["tasks"], "busy"
                if not _has_left(worker, reply):
                    worker.state = "restarted"
                elif worker.running or worker.other_tasks or reply["stopping"]:
                    idle.discard(worker.worker)
                elif worker.worker in idle:
                    worker.state = "drained"
                else:  # a run that is about to begin appears only in the next reply
                    idle.add(worker.worker)
            idle -= silent
            for node in silent:
                self.workers[node].state = "busy" if self.workers[node].running else "silent"
            if not self._in("busy", "silent") or (monotonic() >= until and idle.isdisjoint(self._in("busy"))):
                return
            Event().wait(self._poll_interval)

    def shut_down(self) -> None:
        """Shut down the drained workers. Wait up to `SHUTDOWN_TIMEOUT` seconds until each worker has ended, or has been
        restarted by a process manager."""
        stopping = self._in("drained")
        if not stopping:
            return
        self._app.control.shutdown(destination=list(stopping))
        until = monotonic() + SHUTDOWN_TIMEOUT
        while stopping and monotonic() < until:
            replies = {worker.worker: reply for worker, reply in self._ask("a2a_busy", stopping)}
            for node in stopping:
                worker = self.workers[node]
                if node not in replies:
                    worker.state = "shut_down"
                elif not _has_left(worker, replies[node]):
                    worker.state = "restarted"
            stopping = self._in("drained")

    def _in(self, *states: str) -> tuple[str, ...]:
        return tuple(node for node, worker in self.workers.items() if worker.state in states)

    def _ask(
        self, command: str, nodes: Sequence[str], arguments: Mapping[str, Any] | None = None
    ) -> list[tuple[Drained, Any]]:
        """Send a remote control command to `nodes`, and return the workers with the replies that arrive before the
        timeout.

        Raises:
            click.ClickException: The broker is unavailable.
        """
        try:
            replies = ask_workers(self._app, command, REPLY_TIMEOUT, nodes, arguments)
        except Exception as e:  # each transport has its own errors
            raise unavailable_broker(broker_error_text(e)) from e
        return [(self.workers[node], reply) for node, reply in replies.items() if "error" not in reply]


def _has_left(worker: Drained, reply: Mapping[str, Any]) -> bool:
    """Return False if a worker's reply to ``a2a_busy`` shows that the worker was restarted and consumes again."""
    return {*worker.queues} <= {*reply["drained"], *reply["stopping"]}
