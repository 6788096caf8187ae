"""``/metrics``, for Prometheus: what the store says of the whole deployment, and what this gateway counts itself.

A gateway command with several processes, or a server that is given PROMETHEUS_MULTIPROC_DIR, counts in that folder: the
port is shared, so whichever process is asked speaks for all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys
from ..store.deliveries import DeliveryFigures, delivery_figures
from ..store.figures import Figures, figures
from ..store.log import LogPage
from ..telemetry import names
from ..telemetry.exposition import ours
from .deployment import Deployment

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's own variable: where processes that share a port count together."""

FRESH = 1.0
"""Seconds for which what the store said is said again: whoever can reach the port may ask as often as they like."""

LAG_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    """What a gateway counts, and where it is asked. `agents` are named also when there is nothing to say of them."""

    def __init__(self, store: AsyncStore, keys: Keys, agents: Iterable[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock
        self._keys = keys
        self._agents = tuple(agents)
        self._registry = registry = CollectorRegistry(auto_describe=False)
        counted, refused, open_streams, lag = names.REQUESTS, names.REFUSALS, names.OPEN_STREAMS, names.TAIL_LAG
        self._requests = Counter(counted.name, counted.help, counted.labels, registry=registry)
        self._refused = Counter(refused.name, refused.help, refused.labels, registry=registry)
        self._streams = Gauge(
            open_streams.name, open_streams.help, open_streams.labels, registry=registry, multiprocess_mode="livesum"
        )
        self._lag = Histogram(lag.name, lag.help, buckets=LAG_BOUNDS, registry=registry)
        self._ahead = 0.0
        self._found: tuple[Figures, DeliveryFigures] | None = None
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[tuple[Figures, DeliveryFigures]] | None = None

    def routes(self) -> list[Route]:
        """``/metrics``."""
        return [Route("/metrics", self._metrics)]

    async def start(self) -> None:
        """Learns how far this clock is ahead of the store's; forgets the streams of processes that are gone."""
        _forget_the_dead()
        with suppress(StoreUnavailable):
            await self._ask()

    def requested(self, agent: str, operation: str, outcome: str) -> None:
        """Counts a request; `outcome` is "ok", or the name of the protocol's error."""
        self._requests.labels(agent, operation, outcome).inc()

    def may_refuse(self, agent: str, limits: Iterable[str]) -> None:
        """Says 0 of each limit, until one is reached: what is not there can't be watched."""
        for limit in limits:
            self._refused.labels(agent, limit)

    def refused(self, agent: str, limit: str) -> None:
        """Counts a request that a limit was against."""
        self._refused.labels(agent, limit).inc()

    @contextmanager
    def streaming(self, agent: str) -> Iterator[None]:
        """A block for which a stream is open."""
        gauge = self._streams.labels(agent)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def lag(self) -> Callable[[LogPage], None]:
        """Notes how late each page of a log comes that it is called with, by its oldest event. What was recorded before
        now is no measure of anything."""
        return partial(self._late, self._store_time())

    def _late(self, began: float, page: LogPage) -> None:
        if page.entries and page.entries[0].recorded_us / 1e6 >= began:
            self.handed_on(page.entries[0].recorded_us)

    def handed_on(self, recorded_us: int) -> None:
        """What was recorded at that time is read."""
        self._lag.observe(max(0.0, self._store_time() - recorded_us / 1e6))

    def _store_time(self) -> float:
        return self._clock.time() - self._ahead

    async def _metrics(self, _: Request) -> Response:
        try:
            found = await self._latest()
        except StoreUnavailable:
            return PlainTextResponse("the store is away\n", status_code=503)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Deployment(*found, self._agents))
        said = generate_latest(registry) + generate_latest(self._own())
        return Response(said, media_type=CONTENT_TYPE_LATEST)

    async def _latest(self) -> tuple[Figures, DeliveryFigures]:
        """What the store says. Who comes while it is asked gets the same answer, or failure, which may take a while."""
        if self._found is None or self._clock.monotonic() - self._asked_at > FRESH:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(), name="a2a-figures")
            self._found = await asyncio.shield(self._asking)
            self._asked_at = self._clock.monotonic()
        return self._found

    async def _ask(self) -> tuple[Figures, DeliveryFigures]:
        asked, began = self._clock.time(), self._clock.monotonic()
        found, posts = await asyncio.gather(
            self._store.run(figures(self._keys)), self._store.run(delivery_figures(self._keys))
        )
        self._ahead = asked + (self._clock.monotonic() - began) / 2 - found.now_us / 1e6
        return found, posts

    def _own(self) -> CollectorRegistry:
        if FOLDER not in os.environ:
            return ours(self._registry)
        return ours(MultiProcessCollector(None))  # type: ignore[no-untyped-call]


def _forget_the_dead() -> None:
    """Takes out what processes had open that are gone; what they counted stays."""
    if FOLDER not in os.environ:
        return
    for path in Path(os.environ[FOLDER]).glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdecimal() and not _alive(int(pid)):
            mark_process_dead(int(pid))  # type: ignore[no-untyped-call]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
