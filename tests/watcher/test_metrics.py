"""Health probes on a watcher's port. The watcher responds even if other connections are silent."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import httpx

from a2a_celery.watcher.metrics import WatcherMetrics


def test_clients_that_say_nothing_keep_no_probe_waiting() -> None:
    port = WatcherMetrics().serve("127.0.0.1", 0)
    with ExitStack() as sockets:
        for _ in range(3):
            sockets.enter_context(socket.create_connection(("127.0.0.1", port)))

        assert httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=20, trust_env=False).status_code == 200
