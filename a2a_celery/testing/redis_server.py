"""Embedded Redis server of a test process, started once on a Unix socket in a private folder, without a port."""

from __future__ import annotations

import atexit
import os
from threading import Lock

from ..cli.dev.embedded_redis import EmbeddedRedis
from .process_guard import ProcessGuard

_servers: dict[int, EmbeddedRedis] = {}
_lock = Lock()


def shared_server() -> EmbeddedRedis:
    """Return the server of this process. The first call starts the server. The server ends with the process, even if
    the process is killed.

    Raises:
        ConfigError: No Redis server is installed, or the server did not start.
    """
    with _lock:
        pid = os.getpid()
        if pid not in _servers:
            server, guard = EmbeddedRedis(), ProcessGuard()
            guard.add_folder(server.home)
            server.start()
            assert server.process is not None
            guard.add_group(server.process.pid)

            def stop() -> None:
                if os.getpid() == pid:  # a forked child inherits the handler
                    server.stop()
                    guard.release()

            atexit.register(stop)
            _servers[pid] = server
        return _servers[pid]
