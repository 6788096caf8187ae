"""``celery -A … a2a stats``: metrics of a deployment, from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click
from a2a.types import TaskState

from ...client import state_name
from ...features.metrics import FeatureMetrics, read_feature_metrics
from ...store import Keys, SyncStore
from ...store.admin.metrics import FleetMetrics, read_metrics
from ...store.admin.scan import open_tasks
from ...store.admin.usage import StoreUsage, usage
from ..completion import complete_agent
from ..output import duration, json_line, json_object, repeat, shown_size, table, time_of, wrap_text
from .selection import operator_store, require_agent

EVERY = 2.0
"""Default number of seconds between two readings."""

HEADING = ("AGENT", "WAITING", "OLDEST", "WORKING", "PAUSED", "COMPLETED", "FAILED", "CANCELED", "REJECTED", "LOST")


@dataclass(frozen=True, slots=True)
class FleetReading:
    """Metrics of a deployment at one point in time. The numbers of ended tasks, lost runs and posts are totals."""

    counted: FleetMetrics
    posts: FeatureMetrics

    @classmethod
    def of(cls, store: SyncStore, keys: Keys) -> FleetReading:
        """Read the metrics. The cost is independent of the number of tasks.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        return cls(store.run(read_metrics(keys)), store.run(read_feature_metrics(keys)))

    @property
    def time(self) -> datetime:
        return time_of(self.counted.now_us)

    def agent_fields(self, agent: str) -> dict[str, Any]:
        """Return the metrics of an agent as JSON. Lost runs are counted by outcome."""
        seconds = self.counted.oldest.get(agent)
        return {
            "oldestWaitingSeconds": None if seconds is None else round(seconds, 3),
            "ended": {state_name(state).lower(): count for state, count in self.counted.ended(agent).items()},
            "lost": self.counted.lost(agent),
        }

    def run_fields(self) -> dict[str, Any]:
        """Return the numbers of runs and of tasks that wait for an operator or a client as JSON."""
        metrics = self.counted
        return {"runs": dict(metrics.runs), "paused": metrics.paused, "deadLetters": metrics.resubmittable}


def oldest_text(agent: Mapping[str, Any]) -> str:
    """Return the time for which the oldest queued run of an agent has waited, or "-"."""
    seconds = agent["oldestWaitingSeconds"]
    return "-" if seconds is None else duration(seconds)


def stats_fields(
    reading: FleetReading, usage: StoreUsage, open_counts: Mapping[tuple[str, TaskState], int], agents: Iterable[str]
) -> dict[str, Any]:
    """Return the metrics of `agents` and the totals of all agents as JSON.

    Args:
        reading: Metrics of the deployment.
        usage: Usage of the store.
        open_counts: Numbers of tasks that have not ended, by agent and state.
        agents: Names of the agents.
    """

    def open_of(name: str) -> dict[str, int]:
        return {state_name(state).lower(): n for (agent, state), n in sorted(open_counts.items()) if agent == name}

    return {
        "at": reading.time.isoformat(),
        "agents": {name: {"open": open_of(name), **reading.agent_fields(name)} for name in agents},
        **reading.run_fields(),
        "webhooks": json_object(reading.posts),
        "store": {
            "bytes": usage.used,
            "maxBytes": usage.max_memory,
            "tasks": usage.tasks,
            "bytesPerTask": usage.bytes_per_task,
        },
        "followed": usage.followed,
    }


def stats_lines(fields: Mapping[str, Any], agent: str | None) -> Iterator[str]:
    """Yield the result of `stats_fields` as readable lines. If `agent` is not None, the totals are labelled as those of
    all agents."""
    yield from table(HEADING, (_cells(name, agent_fields) for name, agent_fields in fields["agents"].items()))
    yield ""
    if agent is not None:
        yield "totals of all agents:"
    yield from map(wrap_text, _totals(fields))


def _totals(fields: Mapping[str, Any]) -> Iterator[str]:
    runs, posts, store = fields["runs"], fields["webhooks"], fields["store"]
    yield (
        f"runs: {runs['queued']} waiting, {runs['blocked']} blocked by another run of their context, "
        f"{runs['running']} running, {runs['delegated']} delegated to canvases, "
        f"{runs['suspended']} suspended until a time or a signal"
    )
    yield f"tasks that wait for an answer: {fields['paused']}; dead letters: {fields['deadLetters']}"
    yield f"webhooks: {posts['waiting']} waiting, {posts['dead']} given up; posts: {posts['delivered']} delivered, " + (
        f"{posts['failed']} failed, {posts['givenUp']} given up"
    )
    if store["bytes"] is not None:
        of = f" of {shown_size(store['maxBytes'])}" if store["maxBytes"] else ", without a limit"
        yield f"store: {shown_size(store['bytes'])}{of}"
    if store["tasks"] is not None:
        each = f", {shown_size(store['bytesPerTask'])} each" if store["bytesPerTask"] else ""
        yield f"tasks stored: about {store['tasks']:,}{each}"
    if fields["followed"] is not None:
        yield f"tasks that streams and calls follow now: {fields['followed']}"


def _cells(name: str, agent: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells under `HEADING`."""
    counts = Counter[str](agent["open"])
    pause_count = counts["input_required"] + counts["auth_required"]
    numbers = (counts["working"], pause_count, *agent["ended"].values(), sum(agent["lost"].values()))
    return (name, str(counts["submitted"]), oldest_text(agent), *map(str, numbers))


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

        def show() -> None:
            reading = FleetReading.of(store, keys)
            open_counts = Counter((task.agent, task.state) for task in open_tasks(store, keys))
            names = dict.fromkeys([*reading.counted.agents(a2a.agents), *(name for name, _ in open_counts)])
            selected_names = [name for name in names if agent in (None, name)]
            require_agent(a2a, agent, has_tasks=bool(selected_names))
            fields = stats_fields(reading, usage(store, keys), open_counts, selected_names)
            if watch is not None and not as_lines:
                click.clear()
            click.echo(json_line(fields) if as_lines else "\n".join(stats_lines(fields, agent)))

        repeat(show, watch)
