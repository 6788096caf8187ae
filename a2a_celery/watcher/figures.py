"""What one watcher counts, and the port on which it says so: ``a2a watcher --metrics-port``.

``/health/live`` there is 200 as long as every role has looked lately, so a watcher that hangs is restarted.
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
from ..telemetry.exposition import ours

POST_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0)
STALE = 60.0
"""Seconds without a look after which a role hangs: the slowest waits for posts, which take 15 at most, and a store."""


class WatcherFigures:
    """The figures of one watcher. May be read in any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.registry = registry = CollectorRegistry(auto_describe=False)
        posts, again, ticks = names.POST_TIME, names.DISPATCHED_AGAIN, names.TICKS
        self._posts = Histogram(posts.name, posts.help, posts.labels, buckets=POST_BOUNDS, registry=registry)
        self._again = Counter(again.name, again.help, registry=registry)
        removed = names.BLOBS_REMOVED
        self._removed = Counter(removed.name, removed.help, registry=registry)
        self._ticks = Counter(ticks.name, ticks.help, ticks.labels, registry=registry)
        self._ticked_at: dict[str, float] = {}
        registry.register(_Ages(self))

    def posted(self, outcome: str, seconds: float) -> None:
        """A post came to `outcome`."""
        self._posts.labels(outcome).observe(seconds)

    def dispatched_again(self) -> None:
        """A run was published again."""
        self._again.inc()

    def blobs_removed(self, tasks: int) -> None:
        """The blobs of so many tasks that are gone were removed."""
        self._removed.inc(tasks)

    def ticked(self, role: str, outcome: str) -> None:
        """A role has looked: "ok", or "failed"."""
        self._ticks.labels(role, outcome).inc()
        self._ticked_at[role] = self._clock.monotonic()

    def goes_on(self, role: str) -> None:
        """A role is at a look that may be a long one, and does not hang."""
        self._ticked_at[role] = self._clock.monotonic()

    def ages(self) -> dict[str, float]:
        """Seconds since each role's last look ended, or went on."""
        now = self._clock.monotonic()
        return {role: now - at for role, at in tuple(self._ticked_at.items())}

    def serve(self, host: str, port: int) -> int:
        """Serves the figures and the health in a thread, as long as the process lives; gives the port (0 picks one).

        Raises:
            ConfigError: the port is taken, or the host is none of this machine.
        """
        said = make_wsgi_app(ours(self.registry))

        def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            match environ["PATH_INFO"]:
                case "/metrics":
                    page: Iterable[bytes] = said(environ, start)
                    return page
                case "/health/live":
                    late = sorted(role for role, age in self.ages().items() if age > STALE)
                    start("503 Service Unavailable" if late else "200 OK", [("Content-Type", "text/plain")])
                    return [f"no look for {STALE:g} s: {', '.join(late)}\n".encode() if late else b"ok\n"]
                case _:
                    start("404 Not Found", [("Content-Type", "text/plain")])
                    return [b"/metrics and /health/live are served here\n"]

        try:
            server = make_server(host, port, answer, _Server, _Silent)
        except OSError as e:
            raise ConfigError(f"--metrics-port {port}: can't listen on {host}: {e.strerror}") from e
        Thread(target=server.serve_forever, name="a2a-figures", daemon=True).start()
        return server.server_port


class _Ages(Collector):
    """How long ago each role has looked, when it is asked."""

    def __init__(self, figures: WatcherFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(names.TICK_AGE.name, names.TICK_AGE.help, labels=names.TICK_AGE.labels)
        for role, age in self._figures.ages().items():
            family.add_metric([role], age)
        return [family]


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client: one that says nothing must not keep a probe waiting."""

    daemon_threads = True


class _Silent(WSGIRequestHandler):
    """Writes no line for each scrape, and leaves no thread to a client that is silent."""

    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
