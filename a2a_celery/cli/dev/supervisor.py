"""Supervisor of a complete fleet on one machine: Redis, a worker, a watcher and a gateway.

On Ctrl-C, on SIGTERM, and when a child dies, the supervisor stops its children in order. If the supervisor is killed by
SIGKILL, the `ProcessGuard` stops them.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import httpx
from celery import Celery
from click import ClickException

from ...app import A2A
from ...crypto.jwk_sets import is_loopback
from ...errors import A2ACeleryError
from ...settings.loading import load_settings
from ...store import AsyncStore
from ...store.admin.start_check import require_reachable
from .child import DEV, Child, Screen
from .embedded_redis import EmbeddedRedis
from .environment import with_embedded, with_redis, with_tour
from .next_steps import local_url, next_steps, tour
from .process_guard import ProcessGuard

KILLED = -signal.SIGKILL
"""Exit code of a process that SIGKILL ended."""

SIGTERM_GRACE = 2.3
"""Seconds from SIGTERM to SIGQUIT, which makes a busy worker stop immediately."""

SIGQUIT_GRACE = 0.7
"""Seconds from SIGQUIT to SIGKILL. Including Redis' `STOP_TIMEOUT`, a stop takes at most 5 seconds."""

PROGRESS_INTERVAL = 15.0
"""Seconds between two messages about components that are not ready."""

STALE_HEALTH = 2.0
"""Seconds for which the gateway may still report a killed process as healthy."""

PROBE = "/health/ready"


@dataclass(frozen=True, slots=True)
class DevOptions:
    """Options of ``dev`` and ``demo``; see `dev_options`.

    Attributes:
        verbose: Also show the children's output until the fleet is ready.
        has_tour: Print a tour, serve the operator's page, and restart a child that is killed. Set for ``demo``.
    """

    pool: str
    concurrency: int
    host: str
    port: int
    grpc_port: int | None
    redis_url: str | None
    data: Path | None
    verbose: bool
    has_tour: bool = False


@dataclass(frozen=True, slots=True)
class AppLocation:
    """App to run, its location for ``celery -A``, and the folder to run it in.

    A folder of None means the current folder.
    """

    app: Celery
    location: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """Event: a process has ended. `child` is None for the embedded Redis."""

    name: str
    code: int | None
    last_lines: list[str]
    child: Child | None


@dataclass(frozen=True, slots=True)
class _Health:
    """Event: readiness reported by the gateway, with "ok" or a reason for each component."""

    found: dict[str, str]
    ready: bool


class Supervisor:
    """Supervisor that starts the components, waits, and stops them. All events, including signals, arrive in one
    queue."""

    def __init__(self, target: AppLocation, options: DevOptions, port: int, grpc_port: int | None) -> None:
        self._target = target
        self._options = options
        self._port = port
        self._grpc_port = grpc_port
        self._url = local_url(options.host, port)
        self._screen = Screen(is_folded=not options.verbose)
        self._redis: EmbeddedRedis | None = None
        self._children: list[Child] = []
        self._env: dict[str, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-")) if options.has_tour else None
        self._started_at = time.monotonic()
        self._is_ready = False
        self._restarted = ""
        # a signal handler may write to a SimpleQueue, whereas a Queue or an Event could deadlock
        self._events: SimpleQueue[_Ended | _Health | signal.Signals] = SimpleQueue()

    def run(self, environ: Mapping[str, str], redis_url: str | None) -> int:
        """Run until a signal arrives (exit code 0) or a child ends (exit code 1). Without `redis_url`, start an
        embedded Redis.

        Raises:
            click.ClickException: The fleet could not start. No process is left running.
        """
        before = {number: signal.signal(number, self._signalled) for number in _stop_signals()}
        guard = ProcessGuard()
        if self._folder is not None:
            guard.add_folder(self._folder)
        try:
            self._env = self._store(environ, redis_url, guard)
            for name in ("worker", "watcher", "gateway"):
                self._start_child(name, guard)
            self._begin_health_watch()
            return self._until_over(guard)
        except A2ACeleryError as e:
            raise ClickException(str(e)) from e
        finally:
            self._stop()
            guard.release()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _store(self, environ: Mapping[str, str], redis_url: str | None, guard: ProcessGuard) -> dict[str, str]:
        """Return the environment for the children, after checking its settings and its store."""
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
        if self._options.has_tour:
            env = with_tour(app, env)
        settings = load_settings(app.conf, env, app.namespace)
        asyncio.run(_require_store(settings.store_url))
        return env

    def _arguments(self, name: str) -> list[str]:
        """Return the arguments of ``celery`` for the component `name`."""
        options = self._options
        match name:
            case "worker":
                return ["worker", "-n", "dev@%h", "-l", "INFO", "-P", options.pool, "-c", str(options.concurrency)]
            case "watcher":
                return ["a2a", "watcher"]
        gateway = ["a2a", "gateway", "--host", options.host, "--port", str(self._port)]
        return gateway if self._grpc_port is None else [*gateway, "--grpc-port", str(self._grpc_port)]

    def _start_child(self, name: str, guard: ProcessGuard) -> None:
        arguments = ["-A", self._target.location, *self._arguments(name)]
        self._say(f"starting {name}: celery {' '.join(arguments)}")
        child = Child(
            name,
            [sys.executable, "-m", "celery", *arguments],
            env=self._env,
            folder=self._target.folder,
            screen=self._screen,
            hide=PROBE,
            ended=lambda child: self._events.put(_Ended(child.name, child.code, child.last_lines(), child)),
        )
        guard.add_group(child.pgid)
        if self._folder is not None:
            (self._folder / f"{name}.pid").write_text(f"{child.pgid}\n")
        self._children.append(child)

    def _until_over(self, guard: ProcessGuard) -> int:
        """Report events until the fleet must stop. Return the exit code."""
        next_report = PROGRESS_INTERVAL
        while True:
            match self._events.get():
                case _Ended(name, code, _, Child() as child) if (
                    self._options.has_tour and self._is_ready and code == KILLED
                ):
                    self._restart(name, child, guard)
                    next_report = self._elapsed() + PROGRESS_INTERVAL
                case _Ended() as end:
                    self._report(end)
                    return 1
                case _Health() as health:
                    if health.ready:
                        self._report_ready()
                    elif self._elapsed() > next_report:
                        next_report = self._elapsed() + PROGRESS_INTERVAL
                        missing = "; ".join(f"{part}: {state}" for part, state in health.found.items() if state != "ok")
                        self._say(f"waiting for {missing}")
                case number:
                    self._say(f"stopping ({number.name})")
                    return 0

    def _restart(self, name: str, killed: Child, guard: ProcessGuard) -> None:
        """Start a killed child again, after its remaining processes."""
        self._say(f"the {name} was killed; starting another")
        killed.kill()
        self._children.remove(killed)
        self._restarted = name
        self._screen.is_folded = not self._options.verbose
        self._start_child(name, guard)
        self._begin_health_watch(STALE_HEALTH)

    def _report_ready(self) -> None:
        self._screen.is_folded = False
        if self._is_ready:
            self._say(f"the {self._restarted} is ready")
            return
        self._is_ready = True
        self._screen.show(self._next_steps())

    def _report(self, end: _Ended) -> None:
        how = f"by {signal.Signals(-end.code).name}" if end.code is not None and end.code < 0 else f"code {end.code}"
        self._say(f"the {end.name} ended unexpectedly ({how}); its last lines:")
        for line in end.last_lines:
            self._say(f"  {line}")

    def _next_steps(self) -> str:
        target = self._target
        if self._folder is not None:
            return tour(A2A.of(target.app).agents, self._url, self._folder, self._elapsed())
        return next_steps(A2A.of(target.app).agents, self._url, self._grpc_port, target.location, target.folder)

    def _stop(self) -> None:
        """Stop the children, newest first, and then Redis: with SIGTERM, then SIGQUIT, then SIGKILL. A second signal
        kills all of them immediately."""
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
        if self._wait_for_ends(SIGTERM_GRACE):
            for child in self._children:
                if child.name == "worker":
                    child.signal(signal.SIGQUIT)
            self._wait_for_ends(SIGQUIT_GRACE)
        for child in reversed(self._children):
            child.kill()  # including the remaining processes in an ended child's group
        if self._redis is not None:
            self._redis.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._children:
            self._say("all stopped")

    def _wait_for_ends(self, seconds: float) -> bool:
        """Wait for the children to end. Return True on a timeout, or False if all have ended or a signal arrived."""
        deadline = time.monotonic() + seconds
        while any(child.running for child in self._children):
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return True
            if isinstance(event, signal.Signals):
                return False
        return False

    def _begin_health_watch(self, delay: float = 0.0) -> None:
        Thread(target=self._watch_health, args=(delay,), daemon=True, name="health").start()

    def _watch_health(self, delay: float) -> None:
        """Poll the gateway until it is ready, after `delay` seconds. Runs in a thread, because a response may
        wait for the broker."""
        time.sleep(delay)
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
        self._events.put(_Ended("redis", code, server.last_lines(), None))

    def _signalled(self, number: int, _: object) -> None:
        self._events.put(signal.Signals(number))

    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at

    def _say(self, line: str) -> None:
        self._screen.say(DEV, line)


def _stop_signals() -> tuple[signal.Signals, ...]:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started with nohup: keep running without the terminal
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


async def _require_store(url: str) -> None:
    """Return when the store responds.

    Raises:
        StoreUnavailable: The store does not respond.
    """
    store = AsyncStore(url)
    try:
        await require_reachable(store)
    finally:
        await store.aclose()
