"""``celery -A … a2a stats``: metrics of a deployment, from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Any

import click
from a2a.types import TaskState

from ...client import state_name
from ...lifecycle.states import INTERRUPTED, SUBMITTED, TERMINAL, WORKING
from ...store import Keys, SyncStore
from ...store.admin.metrics import FleetMetrics, read_metrics
from ...store.admin.scan import open_tasks
from ...store.admin.usage import StoreUsage, usage
from ...store.webhooks.deliveries import DeliveryMetrics, delivery_metrics
from ..completion import complete_agent
from ..output import duration, json_line, json_object, shown_size, table, time_of, wrap_text
from .selection import operator_store, require_agent

EVERY = 2.0
"""Default number of seconds between two readings."""

HEADING = ("AGENT", "WAITING", "OLDEST", "WORKING", "PAUSED", "COMPLETED", "FAILED", "CANCELED", "REJECTED", "LOST")


@dataclass(frozen=True, slots=True)
class FleetReading:
    """Metrics of a deployment at one point in time. The numbers of ended tasks, lost runs and posts are totals."""

    counted: FleetMetrics
    posts: DeliveryMetrics

    @classmethod
    def of(cls, store: SyncStore, keys: Keys) -> FleetReading:
        """Read the metrics. The cost is independent of the number of tasks.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        return cls(store.run(read_metrics(keys)), store.run(delivery_metrics(keys)))

    @property
    def time(self) -> datetime:
        return time_of(self.counted.now_us)

    def agents(self, names: Iterable[str]) -> list[str]:
        """Return `names` and the names of all other agents that have metrics."""
        return list(dict.fromkeys([*names, *(name for _, name, _ in self.counted.counts)]))

    def end_count(self, agent: str | None = None, *states: int) -> int:
        """Return the number of tasks that ended in `states`, or in any state, for `agent` or for all agents."""
        labels = {str(int(state)) for state in states or TERMINAL}
        counts = self.counted.counted("ended").items()
        return sum(n for (name, state), n in counts if agent in (None, name) and state in labels)

    def loss_counts(self, agent: str) -> dict[str, int]:
        """Return the numbers of lost runs of an agent, by outcome."""
        return {outcome: n for (name, outcome), n in self.counted.counted("lost").items() if name == agent}

    def oldest(self, agent: str) -> str:
        """Return the time for which the oldest queued run of an agent has waited, or "-"."""
        seconds = self.counted.oldest.get(agent)
        return "-" if seconds is None else duration(seconds)

    def agent_fields(self, agent: str) -> dict[str, Any]:
        """Return the metrics of an agent as JSON."""
        seconds = self.counted.oldest.get(agent)
        return {
            "oldestWaitingSeconds": None if seconds is None else round(seconds, 3),
            "ended": {state_name(state).lower(): self.end_count(agent, state) for state in sorted(TERMINAL)},
        }

    def run_fields(self) -> dict[str, Any]:
        """Return the numbers of runs and of tasks that wait for an operator or a client as JSON."""
        metrics = self.counted
        return {"runs": dict(metrics.runs), "paused": metrics.paused, "deadLetters": metrics.dead_letters}


@dataclass(frozen=True, slots=True)
class Stats:
    """Metrics of a deployment, with its open tasks and the usage of its store."""

    reading: FleetReading
    usage: StoreUsage
    open: Mapping[tuple[str, TaskState], int]
    """Number of tasks that have not ended, by agent and state."""

    agents: tuple[str, ...]

    @classmethod
    def of(cls, store: SyncStore, keys: Keys, agents: Iterable[str], agent: str | None) -> Stats:
        """Read the metrics of `agent` or, if `agent` is None, of the agents in `agents` and all other agents that have
        metrics.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        reading = FleetReading.of(store, keys)
        open_counts = Counter((task.agent, task.state) for task in open_tasks(store, keys))
        names = dict.fromkeys([*reading.agents(agents), *(name for name, _ in open_counts)])
        selected_names = tuple(name for name in names if agent in (None, name))
        return cls(reading, usage(store, keys), open_counts, selected_names)

    def as_json(self) -> str:
        """Return the metrics as one line of JSON."""
        usage = self.usage
        return json_line(
            {
                "at": self.reading.time.isoformat(),
                "agents": {name: self._agent(name) for name in self.agents},
                **self.reading.run_fields(),
                "webhooks": json_object(self.reading.posts),
                "store": {
                    "bytes": usage.used,
                    "maxBytes": usage.max_memory,
                    "tasks": usage.tasks,
                    "bytesPerTask": usage.bytes_per_task,
                },
                "followed": usage.followed,
            }
        )

    def lines(self, agent: str | None) -> Iterator[str]:
        """Yield the metrics as readable lines. If `agent` is not None, the totals are labelled as those of all
        agents."""
        yield from table(HEADING, map(self._cells, self.agents))
        yield ""
        if agent is not None:
            yield "totals of all agents:"
        yield from map(wrap_text, self._totals())

    def _totals(self) -> Iterator[str]:
        counted, posts, usage = self.reading.counted, self.reading.posts, self.usage
        yield (
            f"runs: {counted.runs['queued']} waiting, {counted.runs['blocked']} blocked by another run of their "
            f"context, {counted.runs['running']} running, {counted.runs['delegated']} delegated to canvases, "
            f"{counted.runs['suspended']} suspended until a time or a signal"
        )
        yield f"tasks that wait for an answer: {counted.paused}; dead letters: {counted.dead_letters}"
        yield (
            f"webhooks: {posts.waiting} waiting, {posts.dead} given up; "
            f"posts: {posts.delivered} delivered, {posts.failed} failed, {posts.given_up} given up"
        )
        if usage.used is not None:
            of = f" of {shown_size(usage.max_memory)}" if usage.max_memory else ", without a limit"
            yield f"store: {shown_size(usage.used)}{of}"
        if usage.tasks is not None:
            each = f", {shown_size(usage.bytes_per_task)} each" if usage.bytes_per_task else ""
            yield f"tasks stored: about {usage.tasks:,}{each}"
        if usage.followed is not None:
            yield f"tasks that streams and calls follow now: {usage.followed}"

    def _agent(self, name: str) -> dict[str, Any]:
        open_counts = {state_name(s).lower(): n for (agent, s), n in sorted(self.open.items()) if agent == name}
        return {"open": open_counts, **self.reading.agent_fields(name), "lost": self.reading.loss_counts(name)}

    def _cells(self, name: str) -> tuple[str, ...]:
        open_counts = Counter({state: n for (agent, state), n in self.open.items() if agent == name})
        numbers = (
            open_counts[WORKING],
            sum(open_counts[state] for state in INTERRUPTED),
            *(self.reading.end_count(name, state) for state in sorted(TERMINAL)),
            sum(self.reading.loss_counts(name).values()),
        )
        return (name, str(open_counts[SUBMITTED]), self.reading.oldest(name), *map(str, numbers))


@click.command()
@click.option("--agent", shell_complete=complete_agent, help="Only this agent, with the totals of all agents.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=EVERY,
    metavar="[SECONDS]",
    help=f"Repeat every SECONDS, {EVERY:g} by default, until Ctrl-C.",
)
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per reading.")
@click.pass_context
def stats(context: click.Context, agent: str | None, watch: float | None, as_lines: bool) -> None:
    """Show metrics of tasks, runs and memory.

    The number of open tasks is a current value. The numbers of ended tasks and lost runs are totals since the store was
    created.
    """
    with operator_store(context, None) as (a2a, store, keys):
        try:
            while True:
                now = Stats.of(store, keys, a2a.agents, agent)
                require_agent(a2a, agent, has_tasks=bool(now.agents))
                if watch is not None and not as_lines:
                    click.clear()
                click.echo(now.as_json() if as_lines else "\n".join(now.lines(agent)))
                if watch is None:
                    return
                Event().wait(watch)
        except KeyboardInterrupt:
            return
