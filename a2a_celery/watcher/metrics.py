"""Metrics and health of a watcher, and the HTTP server for both (``a2a watcher --metrics-port``).

``/health/live`` returns 200 while all roles tick, and 503 if a role has not ticked for `MAX_TICK_AGE` seconds since it
was started. An orchestrator can therefore restart a watcher that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError
from ..telemetry import names
from ..telemetry.names import package_metrics

POST_TIME_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0)
MAX_TICK_AGE = 60.0
"""Seconds without a tick after which a role counts as hung. The slowest role waits for the store and for posts,
which take up to 15 s."""


class WatcherMetrics:
    """Metrics of one watcher. Thread-safe."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry(auto_describe=False)
        posts, redispatches, ticks = names.POST_TIME, names.DISPATCHED_AGAIN, names.TICKS
        self._posts = Histogram(posts.name, posts.help, posts.labels, buckets=POST_TIME_BUCKETS, registry=registry)
        self._redispatches = Counter(redispatches.name, redispatches.help, registry=registry)
        removals = names.BLOBS_REMOVED
        self._blob_removals = Counter(removals.name, removals.help, registry=registry)
        self._ticks = Counter(ticks.name, ticks.help, ticks.labels, registry=registry)
        self._ticked_at: dict[str, float] = {}
        registry.register(_TickAgeCollector(self))

    def count_post(self, outcome: str, seconds: float) -> None:
        """Count a post and its duration."""
        self._posts.labels(outcome).observe(seconds)

    def count_redispatch(self) -> None:
        """Count a run that was published again."""
        self._redispatches.inc()

    def count_blob_removals(self, tasks: int) -> None:
        """Count deleted tasks whose blobs were removed."""
        self._blob_removals.inc(tasks)

    def declare_role(self, role: str) -> None:
        """Start the series of a role, so that alerts work before its first tick has ended, or succeeded."""
        for outcome in ("ok", "failed"):
            self._ticks.labels(role, outcome)
        self.record_progress(role)

    def record_tick(self, role: str, outcome: str) -> None:
        """Record that a tick of a role has ended with the outcome "ok" or "failed"."""
        self._ticks.labels(role, outcome).inc()
        self._ticked_at[role] = self._clock.monotonic()

    def record_progress(self, role: str) -> None:
        """Record that a long tick of a role makes progress."""
        self._ticked_at[role] = self._clock.monotonic()

    def tick_ages(self) -> dict[str, float]:
        """Return the seconds since the last tick or progress of each role."""
        now = self._clock.monotonic()
        return {role: now - at for role, at in tuple(self._ticked_at.items())}

    def serve(self, host: str, port: int) -> int:
        """Serve metrics and health from a daemon thread.

        Args:
            host: Address to listen on.
            port: Port to listen on, or 0 to choose a free port.

        Returns:
            The port on which the server listens.

        Raises:
            ConfigError: The port is in use, or this machine does not have the address.
        """
        metrics_app = make_wsgi_app(package_metrics(self.registry))

        def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            headers = [("Content-Type", "text/plain")]
            match environ["PATH_INFO"]:
                case "/metrics":
                    page: Iterable[bytes] = metrics_app(environ, start_response)
                    return page
                case "/health/live":
                    late_roles = sorted(role for role, age in self.tick_ages().items() if age > MAX_TICK_AGE)
                    start_response("503 Service Unavailable" if late_roles else "200 OK", headers)
                    return [
                        f"no tick for {MAX_TICK_AGE:g} s: {', '.join(late_roles)}\n".encode() if late_roles else b"ok\n"
                    ]
                case _:
                    start_response("404 Not Found", headers)
                    return [b"not found: the paths are /metrics and /health/live\n"]

        try:
            server = make_server(host, port, app, _Server, _RequestHandler)
        except OSError as e:
            raise ConfigError(f"--metrics-port {port}: cannot listen on {host}: {e.strerror}") from e
        Thread(target=server.serve_forever, name="a2a-metrics", daemon=True).start()
        return server.server_port


class _TickAgeCollector(Collector):
    """Prometheus collector that reports the tick ages at the time of a scrape."""

    def __init__(self, metrics: WatcherMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(names.TICK_AGE.name, names.TICK_AGE.help, labels=names.TICK_AGE.labels)
        for role, age in self._metrics.tick_ages().items():
            family.add_metric([role], age)
        return [family]


class _Server(ThreadingMixIn, WSGIServer):
    """HTTP server with a thread for each client, so that a silent client does not delay a probe."""

    daemon_threads = True


class _RequestHandler(WSGIRequestHandler):
    """Request handler that does not log requests and disconnects silent clients."""

    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        pass
