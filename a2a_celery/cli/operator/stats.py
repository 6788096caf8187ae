"""``celery -A … a2a stats``: metrics of a deployment, from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any

import click
from a2a.types import TaskState

from ...lifecycle.states import INTERRUPTED, SUBMITTED, TERMINAL, WORKING
from ...store import Keys, SyncStore
from ...store.admin.metrics import FleetMetrics, read_metrics
from ...store.admin.scan import open_tasks
from ...store.admin.usage import StoreUsage, usage
from ...store.webhooks.deliveries import DeliveryMetrics, delivery_metrics
from ..completion import complete_agent
from ..output import duration, json_line, shown_size, state_name, table, wrap_text
from .selection import operator_store, require_agent

EVERY = 2.0
"""Default number of seconds between two readings."""

HEADING = ("AGENT", "WAITING", "OLDEST", "WORKING", "PAUSED", "COMPLETED", "FAILED", "CANCELED", "REJECTED", "LOST")


@dataclass(frozen=True, slots=True)
class Stats:
    """Metrics of a deployment at one point in time."""

    counted: FleetMetrics
    posts: DeliveryMetrics
    usage: StoreUsage
    open: Mapping[tuple[str, TaskState], int]
    """Number of tasks that have not ended, by agent and state."""

    agents: tuple[str, ...]

    @classmethod
    def of(cls, store: SyncStore, keys: Keys, agents: Mapping[str, Any], agent: str | None) -> Stats:
        """Read the metrics of `agent` or, if `agent` is None, of the agents in `agents` and all other agents that have
        metrics.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        fleet_metrics, posts = store.run(read_metrics(keys)), store.run(delivery_metrics(keys))
        standing = Counter((task.agent, task.state) for task in open_tasks(store, keys))
        names = dict.fromkeys(
            [*agents, *(name for _, name, _ in fleet_metrics.counts), *(name for name, _ in standing)]
        )
        selected_names = tuple(name for name in names if agent in (None, name))
        return cls(fleet_metrics, posts, usage(store, keys), standing, selected_names)

    def as_json(self) -> str:
        """Return the metrics as one line of JSON."""
        fleet_metrics, usage = self.counted, self.usage
        return json_line(
            {
                "at": datetime.fromtimestamp(fleet_metrics.now_us / 1_000_000, UTC).isoformat(),
                "agents": {name: self._agent(name) for name in self.agents},
                "runs": dict(fleet_metrics.runs),
                "paused": fleet_metrics.paused,
                "deadLetters": fleet_metrics.dead_letters,
                "webhooks": {
                    "waiting": self.posts.waiting,
                    "dead": self.posts.dead,
                    "delivered": self.posts.delivered,
                    "failed": self.posts.failed,
                    "givenUp": self.posts.given_up,
                },
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
        yield from table(HEADING, [self._cells(name) for name in self.agents])
        yield ""
        if agent is not None:
            yield "totals of all agents:"
        yield from map(wrap_text, self._totals())

    def _totals(self) -> Iterator[str]:
        runs, posts, usage = self.counted.runs, self.posts, self.usage
        yield (
            f"runs: {runs['queued']} waiting, {runs['blocked']} blocked by another run of their context, "
            f"{runs['running']} running, {runs['delegated']} delegated to canvases, "
            f"{runs['suspended']} suspended until a time or a signal"
        )
        yield f"tasks that wait for an answer: {self.counted.paused}; dead letters: {self.counted.dead_letters}"
        yield f"webhooks: {posts.waiting} waiting, {posts.dead} given up; posts: {posts.delivered} delivered, " + (
            f"{posts.failed} failed, {posts.given_up} given up"
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
        oldest = self.counted.oldest.get(name)
        return {
            "open": {state_name(s).lower(): n for (agent, s), n in sorted(self.open.items()) if agent == name},
            "oldestWaitingSeconds": None if oldest is None else round(oldest, 3),
            "ended": {state_name(state).lower(): self._end_count(name, state) for state in sorted(TERMINAL)},
            "lost": {outcome: n for (agent, outcome), n in self.counted.counted("lost").items() if agent == name},
        }

    def _cells(self, name: str) -> tuple[str, ...]:
        waiting = self.open.get((name, SUBMITTED), 0)
        pause_count = sum(self.open.get((name, state), 0) for state in INTERRUPTED)
        oldest = self.counted.oldest.get(name)
        end_counts = (self._end_count(name, state) for state in sorted(TERMINAL))
        loss_count = sum(n for (agent, _), n in self.counted.counted("lost").items() if agent == name)
        metrics = (self.open.get((name, WORKING), 0), pause_count, *end_counts, loss_count)
        return (name, str(waiting), "-" if oldest is None else duration(oldest), *map(str, metrics))

    def _end_count(self, name: str, state: TaskState) -> int:
        return self.counted.counted("ended").get((name, str(int(state))), 0)


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
