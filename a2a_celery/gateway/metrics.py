"""``/metrics``, for Prometheus. What it says is the whole deployment's, so any one gateway can be asked."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys
from ..store.deliveries import DeliveryFigures, delivery_figures


class Metrics:
    """Asks the store when it is asked: nothing is counted in a process, which may end."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    def routes(self) -> list[Route]:
        """``/metrics``."""
        return [Route("/metrics", self._metrics)]

    async def _metrics(self, _: Request) -> Response:
        try:
            figures = await self._store.run(delivery_figures(self._keys))
        except StoreUnavailable:
            return PlainTextResponse("the store is away\n", status_code=503)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Webhooks(figures))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Webhooks(Collector):
    """The figures of deliveries, as Prometheus has them."""

    def __init__(self, figures: DeliveryFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        posts = CounterMetricFamily(
            "a2a_webhook_posts", "Posts to webhooks, by what became of them.", labels=["outcome"]
        )
        for outcome in ("delivered", "failed", "given_up"):
            posts.add_metric([outcome], getattr(self._figures, outcome))
        lines = GaugeMetricFamily("a2a_webhooks", "Webhooks that wait for a post, or were given up.", labels=["state"])
        for state in ("waiting", "dead"):
            lines.add_metric([state], getattr(self._figures, state))
        return [posts, lines]
