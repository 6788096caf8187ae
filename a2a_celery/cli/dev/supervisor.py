"""The supervisor of a whole fleet on one machine: Redis, worker, watcher and gateway.

The supervisor stops its children in order on Ctrl-C, on SIGTERM and when a child dies. After a SIGKILL the
`ProcessGuard` stops them.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import click
import httpx
from celery import Celery

from ...app import A2A
from ...crypto.jwk_sets import is_loopback
from ...errors import A2ACeleryError
from ...settings.loading import load_settings
from ...store import AsyncStore
from ...store.admin.start_check import require_reachable
from .child_process import Child, Screen
from .embedded_redis import EmbeddedRedis
from .environment import with_embedded, with_redis
from .next_steps import next_steps
from .process_guard import ProcessGuard

SIGTERM_GRACE = 2.3
"""Seconds from SIGTERM to SIGQUIT, on which a busy worker stops at once."""

SIGQUIT_GRACE = 0.7
"""Seconds from SIGQUIT to SIGKILL. With Redis' own `STOP_TIMEOUT`, a stop takes at most 5 seconds."""

PROGRESS_INTERVAL = 15.0
"""Seconds between two messages about parts that are not ready."""

DEV = "dev"
PROBE = "/health/ready"


@dataclass(frozen=True, slots=True)
class DevOptions:
    """Options of ``dev`` and ``demo``, see `dev_options`."""

    pool: str
    concurrency: int
    host: str
    port: int
    grpc_port: int | None
    redis_url: str | None
    data: Path | None


@dataclass(frozen=True, slots=True)
class AppLocation:
    """The app to run, its location for ``celery -A``, and the folder to run in.

    The folder is None for the current one.
    """

    app: Celery
    location: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """The process of a child has ended."""

    name: str
    code: int | None
    last_lines: Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class _Health:
    """Readiness from the gateway: "ok" or a reason, per part."""

    found: dict[str, str]
    ready: bool


class Supervisor:
    """Starts the parts, waits, and stops them. Every event arrives through one queue, signals too."""

    def __init__(self, target: AppLocation, options: DevOptions, port: int, grpc_port: int | None) -> None:
        self._target = target
        self._options = options
        self._port = port
        self._grpc_port = grpc_port
        self._url = local_url(options.host, port)
        self._screen = Screen()
        self._redis: EmbeddedRedis | None = None
        self._children: list[Child] = []
        self._started_at = time.monotonic()
        self._healthy: set[str] = set()
        # a SimpleQueue may be written to from a signal handler; a Queue or an Event may deadlock there
        self._events: SimpleQueue[_Ended | _Health | signal.Signals] = SimpleQueue()

    def run(self, environ: Mapping[str, str], redis_url: str | None) -> int:
        """Run until a signal (exit code 0) or the end of a child (1). Without `redis_url`, embed a Redis.

        Raises:
            click.ClickException: The fleet could not start, and nothing runs.
        """
        before = {number: signal.signal(number, self._signalled) for number in _stop_signals()}
        guard = ProcessGuard()
        try:
            env = self._store(environ, redis_url, guard)
            self._start_children(env, guard)
            Thread(target=self._watch_health, daemon=True, name="health").start()
            return self._until_over()
        except A2ACeleryError as e:
            raise click.ClickException(str(e)) from e
        finally:
            self._stop()
            guard.release()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _store(self, environ: Mapping[str, str], redis_url: str | None, guard: ProcessGuard) -> dict[str, str]:
        """Return the children's environment, after a check of its settings and its store."""
        app = self._target.app
        if redis_url is None:
            self._redis = EmbeddedRedis(self._options.data)
            guard.add_folder(self._redis.home)
            self._redis.start(guard.add_group)
            Thread(target=self._watch_redis, args=(self._redis,), daemon=True, name="redis-end").start()
            data = f"keeps its data in {self._options.data}" if self._options.data else "its data is deleted at the end"
            self._say(f"embedded Redis at {self._redis.store_url}; {data}")
            lasting = self._options.data is not None
            urls = self._redis.store_url, self._redis.broker_url
            loopback = is_loopback(self._options.host)
            env = with_embedded(app, environ, *urls, lasting=lasting, loopback=loopback)
        else:
            env = with_redis(app, environ, redis_url)
        settings = load_settings(app.conf, env, app.namespace)
        asyncio.run(_require_store(settings.store_url))
        return env

    def _start_children(self, env: Mapping[str, str], guard: ProcessGuard) -> None:
        options = self._options
        gateway = ["a2a", "gateway", "--host", options.host, "--port", str(self._port)]
        if self._grpc_port is not None:
            gateway += ["--grpc-port", str(self._grpc_port)]
        worker = ["worker", "-n", "dev@%h", "-l", "INFO", "-P", options.pool, "-c", str(options.concurrency)]
        commands = {"worker": worker, "watcher": ["a2a", "watcher"], "gateway": gateway}
        for name, arguments in commands.items():
            self._say(f"starting {name}: celery -A {self._target.location} {' '.join(arguments)}")
            child = Child(
                name,
                [sys.executable, "-m", "celery", "-A", self._target.location, *arguments],
                env=env,
                folder=self._target.folder,
                screen=self._screen,
                hide=PROBE,
                ended=lambda child: self._events.put(_Ended(child.name, child.code, child.last_lines)),
            )
            guard.add_group(child.pgid)
            self._children.append(child)

    def _until_over(self) -> int:
        """Report events until it is time to stop. Return the exit code."""
        next_report = PROGRESS_INTERVAL
        while True:
            match self._events.get():
                case _Ended() as end:
                    self._report(end)
                    return 1
                case _Health() as health:
                    self._progress(health)
                    if health.ready:
                        self._screen.show(self._next_steps())
                    elif self._elapsed() > next_report:
                        next_report += PROGRESS_INTERVAL
                        missing = "; ".join(f"{part}: {state}" for part, state in health.found.items() if state != "ok")
                        self._say(f"waiting for {missing}")
                case number:
                    self._say(f"stopping ({number.name})")
                    return 0

    def _progress(self, health: _Health) -> None:
        if not self._healthy:
            self._say(f"gateway answers at {self._url} after {self._elapsed():.1f} s")
        healthy = {part for part, state in health.found.items() if state == "ok"}
        for part in sorted(healthy - self._healthy):
            self._say(f"{part}: ok after {self._elapsed():.1f} s")
        self._healthy |= healthy | {"gateway"}

    def _report(self, end: _Ended) -> None:
        how = f"by {signal.Signals(-end.code).name}" if end.code is not None and end.code < 0 else f"code {end.code}"
        self._say(f"the {end.name} ended unexpectedly ({how}); its last lines:")
        for line in end.last_lines():
            self._say(f"  {line}")

    def _next_steps(self) -> str:
        target = self._target
        return next_steps(A2A.of(target.app).agents, self._url, self._grpc_port, target.location, target.folder)

    def _stop(self) -> None:
        """Stop the children, newest first, then Redis: SIGTERM, SIGQUIT, SIGKILL. A second signal kills at once."""
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
        if self._wait_for_ends(SIGTERM_GRACE):
            for child in self._children:
                if child.name == "worker":
                    child.signal(signal.SIGQUIT)
            self._wait_for_ends(SIGQUIT_GRACE)
        for child in reversed(self._children):
            child.kill()  # including the rest of an ended child's group
        if self._redis is not None:
            self._redis.stop()
        if self._children:
            self._say("all stopped")

    def _wait_for_ends(self, seconds: float) -> bool:
        """Wait for the children. Return True on a timeout, and False if all have ended or a signal arrived."""
        deadline = time.monotonic() + seconds
        while any(child.running for child in self._children):
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return True
            if isinstance(event, signal.Signals):
                return False
        return False

    def _watch_health(self) -> None:
        """Poll the gateway until it is ready. In a thread: its reply may wait for the broker."""
        with httpx.Client(trust_env=False, timeout=10) as client:
            while True:
                with suppress(httpx.HTTPError, ValueError):
                    answer = client.get(self._url + PROBE)
                    found = {part: str(state) for part, state in answer.json().items() if part != "status"}
                    ready = answer.status_code == 200
                    self._events.put(_Health(found, ready))
                    if ready:
                        return
                time.sleep(0.2)

    def _watch_redis(self, server: EmbeddedRedis) -> None:
        assert server.process is not None
        code = server.process.wait()
        self._events.put(_Ended("redis", code, server.last_lines))

    def _signalled(self, number: int, _: object) -> None:
        self._events.put(signal.Signals(number))

    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at

    def _say(self, line: str) -> None:
        self._screen.say(DEV, line)


def _stop_signals() -> tuple[signal.Signals, ...]:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: outlive the terminal
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


async def _require_store(url: str) -> None:
    """Return when the store answers.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    store = AsyncStore(url)
    try:
        await require_reachable(store)
    finally:
        await store.aclose()


def local_url(host: str, port: int) -> str:
    """Return the URL at which a client on this machine reaches a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host)
    if shown is None:
        shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
