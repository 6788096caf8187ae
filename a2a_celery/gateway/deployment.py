"""The store's figures as Prometheus has them: the same at every gateway, so ask one, and sum none."""

from __future__ import annotations

from collections.abc import Iterable

from a2a.types import TaskState
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..lifecycle.states import TERMINAL
from ..store.deliveries import DeliveryFigures
from ..store.figures import Figures
from ..telemetry import names
from ..telemetry.names import Figure

LOST = ("again", "failed", "canceled", "handed_back")
"""What becomes of runs that are lost."""

TIMES = {"queue": names.RUN_QUEUE, "first": names.RUN_FIRST_EVENT, "run": names.RUN_TIME, "cancel": names.CANCEL_TIME}


class Deployment(Collector):
    """The figures of a whole deployment. `agents` have theirs also while these are 0: a rate has a beginning then."""

    def __init__(self, found: Figures, posts: DeliveryFigures, agents: Iterable[str]) -> None:
        self._found = found
        self._posts = posts
        self._agents = tuple(agents)

    def collect(self) -> Iterable[Metric]:
        """Every metric."""
        found = self._found
        yield self._by_agent(names.TASKS_ENDED, "ended", {str(int(state)): _short(state) for state in sorted(TERMINAL)})
        yield self._by_agent(names.RUNS_LOST, "lost", {outcome: outcome for outcome in LOST})
        for what, figure in TIMES.items():
            yield self._times(what, figure)
        yield _gauge(names.RUNS, {(phase,): many for phase, many in found.runs.items()})
        ages = dict.fromkeys(self._agents, 0.0) | dict(found.oldest)
        yield _gauge(names.QUEUE_AGE, {(agent,): age for agent, age in ages.items()})
        yield _gauge(names.PAUSES, {(): found.paused})
        yield _gauge(names.DEAD_LETTERS, {(): found.dead_letters})
        archived = {agent: times for (agent, _), times in found.counted("archived").items()}
        yield self._counted(names.TASKS_ARCHIVED, archived)
        yield _gauge(names.ARCHIVE_WAITING, {("due",): found.to_archive, ("refused",): found.archive_refused})
        yield _gauge(names.ARCHIVE_BEHIND, {(): found.archive_behind})
        posts = CounterMetricFamily(names.WEBHOOK_POSTS.name, names.WEBHOOK_POSTS.help, labels=["outcome"])
        for outcome in ("delivered", "failed", "given_up"):
            posts.add_metric([outcome], getattr(self._posts, outcome))
        yield posts
        yield _gauge(names.WEBHOOKS, {(state,): getattr(self._posts, state) for state in ("waiting", "dead")})

    def _by_agent(self, figure: Figure, what: str, labels: dict[str, str]) -> Metric:
        counted = self._found.counted(what)
        family = CounterMetricFamily(figure.name, figure.help, labels=figure.labels)
        for agent in dict.fromkeys([*self._agents, *(agent for agent, _ in counted)]):
            for label, shown in labels.items():
                family.add_metric([agent, shown], counted.get((agent, label), 0))
        return family

    def _counted(self, figure: Figure, counted: dict[str, int]) -> Metric:
        family = CounterMetricFamily(figure.name, figure.help, labels=figure.labels)
        for agent in dict.fromkeys([*self._agents, *counted]):
            family.add_metric([agent], counted.get(agent, 0))
        return family

    def _times(self, what: str, figure: Figure) -> Metric:
        family = HistogramMetricFamily(figure.name, figure.help, labels=figure.labels)
        for agent, times in self._found.times(what).items():
            family.add_metric([agent], times.cumulated, times.sum)
        return family


def _gauge(figure: Figure, values: dict[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(figure.name, figure.help, labels=figure.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _short(state: TaskState) -> str:
    return TaskState.Name(state).removeprefix("TASK_STATE_").lower()
