"""Supervisor of a complete fleet on one machine: Redis, a worker, a watcher and a gateway.

On Ctrl-C, on SIGTERM, and when a child dies, the supervisor stops its children in order. If the supervisor is killed by
SIGKILL, the `ProcessGuard` stops them. With ``--reload``, the supervisor restarts its children when the code changes.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

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
from .code_watcher import POLL_INTERVAL, CodeWatcher, syntax_error
from .embedded_redis import EmbeddedRedis
from .environment import ignores_configuration, with_debugger, with_embedded, with_redis, with_tour
from .next_steps import local_url, next_steps, tour
from .process_guard import ProcessGuard

KILLED = -signal.SIGKILL
"""Exit code of a process that SIGKILL ended."""

SIGTERM_GRACE = 2.3
"""Seconds from SIGTERM to SIGQUIT, which makes a busy worker stop immediately."""

SIGQUIT_GRACE = 0.7
"""Seconds from SIGQUIT to SIGKILL. Including the `STOP_TIMEOUT` of Redis, the fleet stops within 5 seconds."""

REQUEUE_GRACE = 20.0
"""Seconds from SIGQUIT to SIGKILL after a change of the code. The worker requeues its runs in this time."""

PROGRESS_INTERVAL = 15.0
"""Seconds between two messages about components that are not ready."""

STALE_HEALTH = 2.0
"""Seconds for which the gateway may still report a killed process as healthy."""

PROBE = "/health/ready"

COMPONENTS = ("worker", "watcher", "gateway")

SHOWN_FILES = 3
"""Maximum number of changed files that a message lists."""


@dataclass(frozen=True, slots=True)
class DevOptions:
    """Options of ``dev`` and ``demo``; see `dev_options`.

    Attributes:
        verbose: True to show the children's output even before the fleet is ready.
        reload: True to restart the children when the code changes, instead of stopping when a child ends.
        has_tour: True for ``demo``: print a tour, serve the operator's page, and restart a child that is killed.
    """

    pool: str
    concurrency: int
    host: str
    port: int
    grpc_port: int | None
    redis_url: str | None
    data: Path | None
    verbose: bool
    reload: bool = False
    has_tour: bool = False


@dataclass(frozen=True, slots=True)
class AppLocation:
    """App to run.

    Attributes:
        location: Location of the app for ``celery -A``.
        folder: Folder to run the processes in, or None for the current folder.
    """

    app: Celery
    location: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """Event that reports the end of a process. `child` is None for the embedded Redis."""

    name: str
    code: int | None
    last_lines: list[str]
    child: Child | None


@dataclass(frozen=True, slots=True)
class _Health:
    """Event that reports the gateway's readiness, as "ok" or a reason for each component."""

    reasons: dict[str, str]
    ready: bool


@dataclass(frozen=True, slots=True)
class _Changed:
    """Event that reports changed Python files. The paths are relative to the app's folder."""

    files: list[Path]


def unready(reasons: Mapping[str, str]) -> str:
    """Return the components that are not ready, with the reasons that the gateway reports.

    The reason for missing workers advises the user to start one, which the supervisor has done.
    """
    return "; ".join(
        part if part == "workers" else f"{part}: {reason}" for part, reason in reasons.items() if reason != "ok"
    )


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
        self._code = target.folder or Path.cwd()
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-")) if options.has_tour else None
        self._started_at = time.monotonic()
        self._is_ready = False
        self._restarted = ""
        self._has_debugger = options.pool == "solo" and sys.stdin.isatty() and sys.stdout.isatty()
        self._health_watch = Event()
        self._must_stop = False
        # a signal handler may write to a SimpleQueue, whereas a Queue or an Event could deadlock
        self._events: SimpleQueue[_Ended | _Health | _Changed | signal.Signals] = SimpleQueue()

    def run(self, environ: Mapping[str, str], redis_url: str | None) -> int:
        """Run the fleet until a signal arrives or a required process ends.

        Args:
            redis_url: URL of the store, or None to start an embedded Redis.

        Returns:
            The exit code: 0 after a signal, or 1 after the end of a process.

        Raises:
            click.ClickException: The fleet could not start. No process is left running.
        """
        previous_handlers = {number: signal.signal(number, self._on_signal) for number in _stop_signals()}
        modes = termios.tcgetattr(sys.stdin) if self._has_debugger else None
        guard = ProcessGuard()
        if self._folder is not None:
            guard.add_folder(self._folder)
        try:
            self._env = self._store(environ, redis_url, guard)
            if self._options.reload:
                Thread(target=self._watch_code, args=(CodeWatcher(self._code),), daemon=True, name="code").start()
            self._start_children(guard)
            self._begin_health_watch()
            return self._until_over(guard)
        except A2ACeleryError as e:
            raise ClickException(str(e)) from e
        finally:
            self._stop()
            guard.release()
            if modes is not None:  # a debugger that is killed at its prompt leaves the terminal without echo
                termios.tcsetattr(sys.stdin, termios.TCSANOW, modes)
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    def _store(self, environ: Mapping[str, str], redis_url: str | None, guard: ProcessGuard) -> dict[str, str]:
        """Start the embedded Redis if required, check the settings and the store, and return the children's
        environment."""
        app = self._target.app
        if redis_url is None:
            self._redis = EmbeddedRedis(self._options.data)
            guard.add_folder(self._redis.home)
            self._redis.start(guard.add_group)
            Thread(target=self._watch_redis, args=(self._redis,), daemon=True, name="redis-end").start()
            data = f"keeps its data in {self._options.data}" if self._options.data else "its data is deleted at the end"
            self._say(f"embedded Redis at {self._redis.store_url}; {data}")
            if ignores_configuration(app, environ):
                self._say("the broker and the store in the configuration are not used; --redis-url URL uses a server")
            lasting = self._options.data is not None
            urls = self._redis.store_url, self._redis.broker_url
            loopback = is_loopback(self._options.host)
            env = with_embedded(app, environ, *urls, lasting=lasting, loopback=loopback)
        else:
            env = with_redis(app, environ, redis_url)
        if self._options.has_tour:
            env = with_tour(app, env)
        if self._has_debugger:
            env = with_debugger(app, env)
        settings = load_settings(app.conf, env, app.namespace)
        asyncio.run(_require_store(settings.store_url))
        return env

    def _arguments(self, name: str) -> list[str]:
        """Return the arguments of ``celery`` for the component `name`."""
        options = self._options
        match name:
            case "worker":
                worker = ["worker", "-n", "dev@%h", "-l", "INFO", "-P", options.pool, "-c", str(options.concurrency)]
                # otherwise, Celery would log the prompt of a debugger
                return [*worker, "--", "worker.redirect_stdouts=false"] if self._has_debugger else worker
            case "watcher":
                return ["a2a", "watcher"]
        gateway = ["a2a", "gateway", "--host", options.host, "--port", str(self._port)]
        return gateway if self._grpc_port is None else [*gateway, "--grpc-port", str(self._grpc_port)]

    def _start_children(self, guard: ProcessGuard) -> None:
        for name in COMPONENTS:
            self._start_child(name, guard)

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
            on_end=lambda child: self._events.put(_Ended(child.name, child.code, child.last_lines(), child)),
            has_terminal=self._has_debugger and name == "worker",
        )
        guard.add_group(child.pgid)
        if self._folder is not None:
            (self._folder / f"{name}.pid").write_text(f"{child.pgid}\n")
        self._children.append(child)

    def _until_over(self, guard: ProcessGuard) -> int:
        """Handle events until the fleet must stop. Return the exit code."""
        next_report = PROGRESS_INTERVAL
        while True:
            match self._events.get():
                case _Changed(files):
                    self._reload(files, guard)
                    next_report = self._elapsed_seconds() + PROGRESS_INTERVAL
                case _Ended(child=Child() as child) if child not in self._children:
                    pass  # the child was stopped because the code has changed
                case _Ended(child=Child()) as end if self._options.reload:
                    self._report(end)
                    self._stop_children(SIGQUIT_GRACE)
                    self._say("waiting for a change of the code")
                case _Ended(name, code, _, Child() as child) if (
                    self._options.has_tour and self._is_ready and code == KILLED
                ):
                    self._restart(name, child, guard)
                    next_report = self._elapsed_seconds() + PROGRESS_INTERVAL
                case _Ended() as end:
                    self._report(end)
                    return 1
                case _Health() as health:
                    if health.ready:
                        self._report_ready()
                    elif self._elapsed_seconds() > next_report:
                        next_report = self._elapsed_seconds() + PROGRESS_INTERVAL
                        self._say(f"waiting for {unready(health.reasons)}")
                case number:
                    self._say(f"stopping ({number.name})")
                    return 0

    def _restart(self, name: str, child: Child, guard: ProcessGuard) -> None:
        """End the remaining processes of a killed child, and start the child again."""
        self._say(f"the {name} was killed; starting another")
        child.kill()
        self._children.remove(child)
        self._restarted = name
        self._screen.is_folded = not self._options.verbose
        self._start_child(name, guard)
        self._begin_health_watch(STALE_HEALTH)

    def _reload(self, files: list[Path], guard: ProcessGuard) -> None:
        """Restart the children, unless a changed file has a syntax error."""
        names = ", ".join(map(str, files[:SHOWN_FILES])) + (" and more" if len(files) > SHOWN_FILES else "")
        errors = list(filter(None, (syntax_error(self._code / file) for file in files)))
        for line in "\n".join(errors).splitlines():
            self._say(line)
        if errors:
            self._say(f"{names} changed; nothing is restarted, because of the syntax error")
            return
        self._say(f"{names} changed; restarting {', '.join(COMPONENTS)}")
        self._restarted = "fleet"
        if self._stop_children(None if self._has_debugger else REQUEUE_GRACE):
            self._screen.is_folded = not self._options.verbose
            self._start_children(guard)
            self._begin_health_watch(STALE_HEALTH)

    def _report_ready(self) -> None:
        self._screen.is_folded = False
        if self._is_ready:
            self._say(f"the {self._restarted} is ready")
            return
        self._is_ready = True
        self._screen.show(self._next_steps())

    def _report(self, end: _Ended) -> None:
        cause = f"by {signal.Signals(-end.code).name}" if end.code is not None and end.code < 0 else f"code {end.code}"
        self._say(f"the {end.name} ended unexpectedly ({cause}){'; its last lines:' if end.last_lines else ''}")
        for line in end.last_lines:
            self._say(f"  {line}")

    def _next_steps(self) -> str:
        target = self._target
        if self._folder is not None:
            return tour(A2A.of(target.app).agents, self._url, self._folder, self._elapsed_seconds())
        return next_steps(A2A.of(target.app).agents, self._url, self._grpc_port, target.location, target.folder)

    def _stop(self) -> None:
        """Stop the children, and then Redis. A second signal kills the children immediately."""
        self._stop_children(SIGQUIT_GRACE)
        if self._redis is not None:
            self._redis.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._env:
            self._say("all stopped")

    def _stop_children(self, quit_grace: float | None) -> bool:
        """Stop the children, newest first: all with SIGTERM, then the worker with SIGQUIT, then all with SIGKILL.

        Args:
            quit_grace: Seconds from SIGQUIT to SIGKILL. None sends no SIGQUIT, and waits for the children without a
                limit, because an agent may be in a debugger.

        Returns:
            False if the fleet must stop.
        """
        self._health_watch.set()
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
        is_late = self._wait_for_ends(SIGTERM_GRACE)
        if is_late and quit_grace is None:
            self._say("waiting for the worker, whose agent may be in the debugger")
            self._wait_for_ends(None)
        elif is_late:
            for child in self._children:
                if child.name == "worker":
                    child.signal(signal.SIGQUIT)
            self._wait_for_ends(quit_grace)
        for child in reversed(self._children):
            child.kill()  # including the remaining processes in an ended child's group
        self._children.clear()
        return not self._must_stop

    def _wait_for_ends(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for the children to end.

        Returns:
            True on a timeout, or False if all children have ended or the fleet must stop.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while any(child.running for child in self._children):
            try:
                event = self._events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except Empty:
                return True
            if isinstance(event, signal.Signals) or (isinstance(event, _Ended) and event.child is None):
                self._must_stop = True
                self._events.put(event)  # for `_until_over`, if the children are stopped because of a change
                return False
        return False

    def _begin_health_watch(self, delay: float = 0.0) -> None:
        self._health_watch.set()
        self._health_watch = over = Event()
        Thread(target=self._watch_health, args=(delay, over), daemon=True, name="health").start()

    def _watch_health(self, delay: float, over: Event) -> None:
        """Poll the gateway, starting after `delay` seconds, until it is ready or `over` is set.

        A thread executes this method, because the gateway may wait for the broker before it responds.
        """
        time.sleep(delay)
        with httpx.Client(trust_env=False, timeout=10) as client:
            while not over.is_set():
                with suppress(httpx.HTTPError, ValueError):
                    answer = client.get(self._url + PROBE)
                    health = {part: str(state) for part, state in answer.json().items() if part != "status"}
                    ready = answer.status_code == 200
                    if not over.is_set():
                        self._events.put(_Health(health, ready))
                    if ready:
                        return
                time.sleep(0.2)

    def _watch_code(self, watcher: CodeWatcher) -> None:
        while True:
            time.sleep(POLL_INTERVAL)
            files = watcher.poll()
            if files:
                self._events.put(_Changed(files))

    def _watch_redis(self, server: EmbeddedRedis) -> None:
        assert server.process is not None
        code = server.process.wait()
        self._events.put(_Ended("redis", code, server.last_lines(), None))

    def _on_signal(self, number: int, _: object) -> None:
        self._events.put(signal.Signals(number))

    def _elapsed_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def _say(self, line: str) -> None:
        self._screen.say(DEV, line)


def _stop_signals() -> tuple[signal.Signals, ...]:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started with nohup: keep running without the terminal
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


async def _require_store(url: str) -> None:
    """Wait until the store responds.

    Raises:
        StoreUnavailable: The store does not respond.
    """
    store = AsyncStore(url)
    try:
        await require_reachable(store)
    finally:
        await store.aclose()
