"""``celery -A … a2a top``: live view of the fleet, from the store and Celery's remote control."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

import click
from a2a.types import TaskState
from celery import Celery

from ...client import state_name
from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import ask_workers, worker_reports
from ...errors import StoreUnavailable
from ...lifecycle.states import FAILED, TERMINAL
from ...store import SyncStore
from ...store.admin.start_check import server_of
from ...store.admin.usage import Memory, read_memory
from ..doctor.broker_server import require_broker
from ..output import Column, Table, duration, json_line, repeat, shown_size, table, time_text, truncate_text
from .drain import deployment_of
from .selection import operator_store
from .stats import FleetReading, oldest_text

INTERVAL = 1.0
"""Seconds between two readings."""

WINDOW = 10
"""Number of readings over which throughput is averaged."""

REPLY_TIMEOUT = 0.8
REPORT_TIMEOUT = 3.0
"""Seconds to wait for the first report of a worker. The worker reads the store before it replies."""

SILENT_FOR = 30.0
"""Seconds for which a worker that no longer replies is shown."""

QUIT = ("q", "Q", "")
"""Keys that end the view. The empty string stands for the end of the input."""

SCREEN, RESTORE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Escape sequences that switch to the alternate screen without a cursor, and back."""

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

AGENT_HEADING = ("AGENT", "ENDED/S", "FAILED/S", "OLDEST", "COMPLETED", "FAILED", "CANCELED", "LOST")


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """Work of a worker.

    Attributes:
        state: "ready", "drained" (some or all of the worker's queues) or "silent".
        reply_time: Monotonic time of the worker's latest reply.
    """

    worker: str
    state: str
    slots: int
    active: int
    prefetched: int
    other_tasks: int
    queues: tuple[str, ...]
    reply_time: float

    @classmethod
    def of(cls, name: str, reply: Mapping[str, Any], reply_time: float) -> WorkerLoad:
        """Return the load that a worker reports in its reply to ``a2a_load``."""
        state = "drained" if reply["drained"] else "ready"
        numbers = (reply["slots"], reply["active"], reply["prefetched"], reply["others"])
        return cls(name, state, *numbers, tuple(reply["queues"]), reply_time)


WORKERS = Table[WorkerLoad](
    [
        Column("WORKER", "worker", lambda load: load.worker),
        Column("STATE", "state", lambda load: load.state),
        Column("", "slots", lambda load: load.slots),
        Column("ACTIVE", "active", lambda load: load.active, lambda load: f"{load.active} of {load.slots}"),
        Column("PREFETCHED", "prefetched", lambda load: load.prefetched),
        Column("OTHER", "otherTasks", lambda load: load.other_tasks),
        Column("QUEUES", "queues", lambda load: load.queues, lambda load: " ".join(load.queues)),
    ],
    fixed=["WORKER", "STATE", "ACTIVE", "PREFETCHED", "OTHER", "QUEUES"],
)


class WorkerLoads:
    """Loads of this deployment's workers. A thread updates the loads, because workers may take a second to reply.

    Attributes:
        latest: Loads by worker name.
        error: Reason why the workers could not be queried, or "".
    """

    def __init__(self, app: Celery, store: SyncStore, prefix: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.latest: dict[str, WorkerLoad] = {}
        self.error = ""
        self._app = app
        self._ours = (server_of(store).identity, prefix)
        self._is_ours: dict[str, bool] = {}
        self._clock = clock

    def start(self) -> None:
        """Update the loads in a thread until the process ends."""
        Thread(target=self._update_forever, name="worker-loads", daemon=True).start()

    def update(self) -> None:
        """Query all workers once, and set `latest` and `error`."""
        try:
            nodes = ask_workers(self._app, "ping", REPLY_TIMEOUT)
            self._recognize([node for node in nodes if node not in self._is_ours])
            ours = [node for node in nodes if self._is_ours[node]]
            answers = ask_workers(self._app, "a2a_load", REPLY_TIMEOUT, ours) if ours else {}
            replies = {node: reply for node, reply in answers.items() if "slots" in reply}
        except Exception as e:  # kombu raises the exceptions of each transport
            self.error = f"cannot query the workers: {type(e).__name__}"
            replies = {}
        else:
            self.error = ""
        now = self._clock.monotonic()
        loads = {node: WorkerLoad.of(node, reply, now) for node, reply in replies.items()}
        silent = {
            name: replace(load, state="silent")
            for name, load in self.latest.items()
            if name not in loads and now - load.reply_time < SILENT_FOR
        }
        self.latest = dict(sorted((silent | loads).items()))

    def _recognize(self, nodes: Sequence[str]) -> None:
        """Determine which of `nodes` belong to this deployment. A worker that reports no store or key prefix is treated
        as a worker of this deployment, unless its app has no A2A object."""
        reports = worker_reports(self._app, REPORT_TIMEOUT, nodes) if nodes else {}
        for node in nodes:
            report = reports.get(node, {})
            deployment = deployment_of(report)
            self._is_ours[node] = "tasks" not in report and (deployment == self._ours or None in deployment)

    def _update_forever(self) -> None:
        while True:
            began = self._clock.monotonic()
            self.update()
            remaining = INTERVAL - (self._clock.monotonic() - began)
            if remaining > 0:
                Event().wait(remaining)


@dataclass(frozen=True, slots=True)
class View:
    """View of the fleet. Throughput is measured between the readings `before` and `now`."""

    now: FleetReading
    before: FleetReading
    memory: Memory | None
    agents: Sequence[str]
    workers: Sequence[WorkerLoad]
    error: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the view as JSON."""
        memory = self.memory
        return {
            "at": self.now.time.replace(microsecond=0).isoformat(),
            **self.now.run_fields(),
            "agents": {name: self._agent_fields(name) for name in self.agents},
            "webhooks": {
                "waiting": self.now.posts.waiting,
                "dead": self.now.posts.dead,
                "deliveredPerSecond": self._posts_per_second("delivered"),
                "failedPerSecond": self._posts_per_second("failed"),
                "givenUpPerSecond": self._posts_per_second("given_up"),
            },
            "store": {"bytes": memory.used if memory else None, "maxBytes": memory.limit if memory else None},
            "workers": list(map(WORKERS.fields, self.workers)),
        }

    def lines(self, width: int, height: int) -> list[str]:
        """Return the view as at most `height` lines of at most `width` characters."""
        fields = self.fields()
        summary = [*self._summary(fields), ""]
        of_workers = list(WORKERS.lines(self.workers, width))
        if not self.workers:
            of_workers[1:] = [self.error or "no worker replies"]
        agents: Mapping[str, Any] = fields["agents"]
        busiest = sorted(agents, key=lambda name: (-self._rate(name), -(agents[name]["oldestWaitingSeconds"] or 0)))
        cells = (_agent_cells(name, agents[name]) for name in busiest)
        of_agents = list(table(AGENT_HEADING, cells, width, fixed=AGENT_HEADING))
        available = height - len(summary) - 1
        most_workers = max(available // 2, available - len(of_agents))
        lines = [*summary, *_cut(of_agents, available - min(most_workers, len(of_workers)), "agents")]
        return [truncate_text(line, width) for line in [*lines, "", *_cut(of_workers, most_workers, "workers")]]

    def _summary(self, fields: Mapping[str, Any]) -> Iterator[str]:
        runs, posts, store = fields["runs"], fields["webhooks"], fields["store"]
        limit = f" of {shown_size(store['maxBytes'])}" if store["maxBytes"] else ""
        memory = "" if store["bytes"] is None else f"   store {shown_size(store['bytes'])}{limit}"
        yield f"{time_text(self.now.time)} UTC{memory}"
        oldest = max(self.now.counted.oldest.values(), default=None)
        waiting = f"{runs['queued']} waiting" + ("" if oldest is None else f" (oldest {duration(oldest)})")
        yield f"tasks     {waiting}, {runs['running']} running, {runs['suspended']} suspended"
        others = f"{runs['blocked']} blocked, {runs['delegated']} delegated, {fields['paused']} waiting for an answer"
        yield f"          {others}, {fields['deadLetters']} dead letters"
        yield "ended     " + ", ".join(f"{self._rate(None, s):.1f}/s {state_name(s).lower()}" for s in sorted(TERMINAL))
        yield f"webhooks  {posts['waiting']} waiting, {posts['dead']} given up"
        rates = (posts[f"{outcome}PerSecond"] for outcome in ("delivered", "failed", "givenUp"))
        yield "posts     {:.1f}/s delivered, {:.1f}/s failed, {:.1f}/s given up".format(*rates)

    def _per_second(self, more: int) -> float:
        seconds = (self.now.time - self.before.time).total_seconds()
        return round(more / seconds, 2) if seconds > 0 else 0.0

    def _rate(self, agent: str | None, *states: TaskState) -> float:
        """Return the number of tasks per second that ended in `states`, or in any state, for `agent` or all agents."""
        now, before = self.now.counted.ended(agent), self.before.counted.ended(agent)
        return self._per_second(sum(now[state] - before[state] for state in states or TERMINAL))

    def _posts_per_second(self, outcome: str) -> float:
        return self._per_second(getattr(self.now.posts, outcome) - getattr(self.before.posts, outcome))

    def _agent_fields(self, name: str) -> dict[str, Any]:
        fields = self.now.agent_fields(name)
        rates = {"endedPerSecond": self._rate(name), "failedPerSecond": self._rate(name, FAILED)}
        return rates | fields | {"lost": sum(fields["lost"].values())}


def _agent_cells(name: str, agent: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells under `AGENT_HEADING`."""
    rates = (f"{agent['endedPerSecond']:.1f}", f"{agent['failedPerSecond']:.1f}")
    end_counts = (str(agent["ended"][state]) for state in ("completed", "failed", "canceled"))
    return (name, *rates, oldest_text(agent), *end_counts, str(agent["lost"]))


class Views:
    """Successive views of a fleet."""

    def __init__(
        self, reader: Callable[[], tuple[FleetReading, Memory | None]], agents: Sequence[str], loads: WorkerLoads
    ) -> None:
        self._read = reader
        self._agents = agents
        self._loads = loads
        self._readings: deque[FleetReading] = deque(maxlen=WINDOW + 1)

    def next(self) -> View:
        """Read the store, and return the current view.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        now, memory = self._read()
        self._readings.append(now)
        workers = list(self._loads.latest.values())
        return View(now, self._readings[0], memory, now.counted.agents(self._agents), workers, self._loads.error)


@click.command()
@click.option("--once", is_flag=True, help="Show one view, with the throughput of a second, and exit.")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per view.")
@click.pass_context
def top(context: click.Context, once: bool, as_lines: bool) -> None:
    """Show a live view of tasks, throughput, webhooks and workers.

    Refreshes each second until q or Ctrl-C. Throughput is the mean of the last 10 seconds. Workers of an older release
    are not shown.
    """
    if not (once or as_lines or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("the live view needs a terminal: pass --once or --json")
    with operator_store(context, None) as (a2a, store, keys):
        require_broker(a2a.celery)
        loads = WorkerLoads(a2a.celery, store, a2a.settings.key_prefix)
        views = Views(lambda: (FleetReading.of(store, keys), store.run(read_memory())), list(a2a.agents), loads)
        if once:
            views.next()
            loads.update()
            view = views.next()
            click.echo(json_line(view.fields()) if as_lines else "\n".join(view.lines(*_size())))
            return
        loads.start()
        if as_lines:
            repeat(lambda: click.echo(json_line(views.next().fields())), INTERVAL)
        else:
            with suppress(KeyboardInterrupt), keyboard() as wait:
                show_views(views, wait)


def show_views(views: Views, wait: Callable[[float], str | None]) -> None:
    """Show views on the terminal until a key of `QUIT` is pressed.

    While the store is unavailable, the last view stays, with the reason in its first line.

    Args:
        wait: Function that returns the key that is pressed within a number of seconds, or None.
    """
    lines: list[str] = []
    sys.stdout.write(SCREEN)
    try:
        while True:
            width, height = _size()
            try:
                lines = views.next().lines(width, height - 1)
                lines[0] = truncate_text(f"{lines[0]}   q quits", width)
            except StoreUnavailable as e:
                lines = [truncate_text(f"store unavailable, trying again: {e}", width), *lines[1:]]
            sys.stdout.write(HOME + "".join(f"{line}{REST_OF_LINE}\r\n" for line in lines) + REST_OF_SCREEN)
            sys.stdout.flush()
            if wait(INTERVAL) in QUIT:
                return
    finally:
        sys.stdout.write(RESTORE)
        sys.stdout.flush()


@contextmanager
def keyboard() -> Iterator[Callable[[float], str | None]]:
    """Put the terminal into cbreak mode, and yield a function that waits for a key; see `show_views`.

    Ctrl-C still raises KeyboardInterrupt.
    """
    descriptor = sys.stdin.fileno()
    terminal_attributes = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str | None:
        readable, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode(errors="replace") if readable else None

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, terminal_attributes)


def _size() -> tuple[int, int]:
    """Return the width and height of the terminal. Without a terminal, return sizes that truncate nothing."""
    if sys.stdout.isatty():
        size = shutil.get_terminal_size()
        return size.columns, size.lines
    return 10_000, 10_000


def _cut(lines: list[str], most: int, noun: str) -> list[str]:
    """Truncate a table to `most` lines. The last line of a truncated table counts the omitted lines."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"… {len(lines) - most + 1} more {noun}"]
