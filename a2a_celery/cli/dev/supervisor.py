"""Supervisor of a complete fleet on one machine: Redis, a worker, a watcher and a gateway.

The supervisor starts a child again that ends unexpectedly, unless the child ends at once several times. On Ctrl-C, on
SIGTERM, and when Redis ends, the supervisor stops its children in order. With ``--reload``, the supervisor restarts its
children when the code changes. If SIGKILL ends the supervisor, its children keep running.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from celery import Celery
from click import ClickException

from ...app import A2A
from ...crypto.jwk_sets import is_loopback
from ...errors import A2ACeleryError, ConfigError
from ...settings.loading import load_settings
from ...store import AsyncStore
from ...store.admin.start_check import require_reachable
from .address_file import AddressFile, DevAddresses
from .child import DEV, Child, Screen, wait_for_exit
from .code_watcher import changed_files, require_watchfiles, syntax_error
from .embedded_redis import EmbeddedRedis
from .environment import shared_variables, with_defaults, with_embedded, with_page, with_redis
from .next_steps import local_url, ready_lines, tour

T = TypeVar("T")

SIGTERM_GRACE = 2.3
"""Seconds from SIGTERM to SIGQUIT, which makes a busy worker stop immediately."""

SIGQUIT_GRACE = 0.7
"""Seconds from SIGQUIT to SIGKILL. Including the `STOP_TIMEOUT` of Redis, the fleet stops within 5 seconds."""

REQUEUE_GRACE = 20.0
"""Seconds from SIGQUIT to SIGKILL after a change of the code. The worker requeues its runs in this time."""

QUICK_END = 10.0
"""Seconds from a start within which an end counts as quick."""

RESTART_DELAYS = (0.0, 1.0, 2.0, 4.0)
"""Seconds from consecutive quick ends to the next start. After one more quick end, the component is given up."""

PROGRESS_INTERVAL = 15.0
"""Seconds between two messages about components that are not ready."""

HEALTH_INTERVAL = 0.2
"""Seconds between two requests to a gateway that is not ready."""

STALE_HEALTH = 2.0
"""Seconds for which the gateway may still report a killed process as healthy."""

TOUR_LEASE_TTL = "5"
"""Default `lease_ttl` of ``demo`` in seconds, so that a lost worker is detected quickly."""

DEBUGGER_LEASE_TTL = "3600"
"""Default `lease_ttl` in seconds if a debugger can stop the worker. A stopped worker does not renew its leases."""

PROBE = "/health/ready"

COMPONENTS = ("worker", "watcher", "gateway")

SHOWN_FILES = 3
"""Maximum number of changed files that a message lists."""


@dataclass(frozen=True, slots=True)
class DevOptions:
    """Options of ``dev`` and ``demo``; see `dev_options`.

    Attributes:
        verbose: True to show the children's output even before the fleet is ready for the first time.
        reload: True to restart the children when the code changes. A child that exits waits for a change.
        has_tour: True for ``demo``: print a tour, and use a short lease.
    """

    pool: str
    concurrency: int
    host: str
    port: int | None
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


class Supervisor:
    """Supervisor that starts the components, waits, and stops them."""

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
        self._code = (target.folder or Path.cwd()).resolve()
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-")) if options.has_tour else None
        self._started_at = time.monotonic()
        self._is_ready = False
        self._restarted: list[str] = []
        self._has_started = asyncio.Event()
        self._addresses = AddressFile(target.app, self._code)
        self._has_debugger = options.pool == "solo" and sys.stdin.isatty() and sys.stdout.isatty()
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def run(self, environ: Mapping[str, str], redis_url: str | None) -> int:
        """Run the fleet until a signal arrives, Redis ends, or a component cannot run.

        Args:
            redis_url: URL of the store, or None to start an embedded Redis.

        Returns:
            The exit code: 0 after a signal, or 1 after the end of a process.

        Raises:
            click.ClickException: The fleet could not start. No process is left running.
        """
        try:
            with _restored_terminal() if self._has_debugger else nullcontext():
                return asyncio.run(self._run(environ, redis_url))
        except A2ACeleryError as e:
            raise ClickException(str(e)) from e

    async def _run(self, environ: Mapping[str, str], redis_url: str | None) -> int:
        for number in _stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._signals.put_nowait, number)
        try:
            if self._options.reload:
                require_watchfiles()
            await self._start_store(environ, redis_url)
            self._write_addresses()
            endings = [self._wait_for_signal(), self._run_fleet()]
            if self._redis is not None:
                endings.append(self._wait_for_redis(self._redis))
            return await first(*endings)
        finally:
            await self._stop()

    async def _start_store(self, environ: Mapping[str, str], redis_url: str | None) -> None:
        """Start the embedded Redis if required, set the children's environment, and check the settings and the
        store."""
        app = self._target.app
        loopback = is_loopback(self._options.host)
        if redis_url is None:
            self._redis = EmbeddedRedis(self._options.data)
            self._redis.start()
            data = f"keeps its data in {self._options.data}" if self._options.data else "its data is deleted at the end"
            self._say(f"embedded Redis at {self._redis.store_url}; {data}; --redis-url URL uses another server")
            lasting = self._options.data is not None
            urls = self._redis.store_url, self._redis.broker_url
            env = with_embedded(app, environ, *urls, lasting=lasting, loopback=loopback)
        else:
            env = with_redis(app, environ, redis_url)
        env = with_page(app, env, loopback=loopback)
        if self._options.has_tour:
            env = with_defaults(app, env, lease_ttl=TOUR_LEASE_TTL)
        if self._has_debugger:
            env = with_defaults(app, env, lease_ttl=DEBUGGER_LEASE_TTL)
        await _require_store(load_settings(app.conf, env, app.namespace).store_url)
        self._env = env

    def _write_addresses(self) -> None:
        """Write the address file. Without the file, the commands of the app need the address of the store."""
        addresses = DevAddresses(self._url, self._grpc_port, shared_variables(self._env))
        try:
            if not self._addresses.write(addresses):
                self._say("another a2a dev of this app runs, whose fleet the commands of the app use")
        except ConfigError as e:
            self._say(f"{e}; the commands of the app need A2A_STORE_URL")

    async def _wait_for_signal(self) -> int:
        number = await self._signals.get()
        self._say(f"stopping ({number.name})")
        return 0

    async def _wait_for_redis(self, server: EmbeddedRedis) -> int:
        assert server.process is not None
        self._report("redis", await wait_for_exit(server.process), server.last_lines())
        return 1

    async def _run_fleet(self) -> int:
        """Run the components until one of them cannot run. With ``--reload``, restart them after each change."""
        if not self._options.verbose:
            self._say(f"starting {', '.join(COMPONENTS)}")
        if not self._options.reload:
            return await self._run_components()
        while True:
            await first(self._run_components_until_reload(), self._wait_for_code())
            self._restarted = ["fleet"]
            await self._stop_children(None if self._has_debugger else REQUEUE_GRACE)

    async def _run_components(self) -> int:
        """Run the components until one of them cannot run, and return the exit code of the supervisor."""
        self._has_started.set()
        return await first(*(self._keep_running(name) for name in COMPONENTS), self._watch_health())

    async def _run_components_until_reload(self) -> None:
        await self._run_components()
        await self._stop_children(SIGQUIT_GRACE)
        self._say("waiting for a change of the code")
        await asyncio.Event().wait()

    async def _keep_running(self, name: str) -> int:
        """Start a component, and start it again when it ends.

        Returns:
            1 if a restart cannot help: the component has ended before the fleet was ready, or again and again, or
            because of an error that only a change of the code removes.
        """
        delays = iter(RESTART_DELAYS)
        while True:
            child = self._start_child(name)
            code = await child.wait()
            is_killed = code < 0
            if time.monotonic() - child.started_at > QUICK_END:
                delays = iter(RESTART_DELAYS)
            may_restart = self._is_ready and (is_killed or not self._options.reload)
            delay = next(delays, None) if may_restart else None
            if may_restart and delay is None:
                self._say(f"the {name} ended again and again within {QUICK_END:.0f} s of its start: giving up")
            if delay is None or not is_killed:
                self._report(name, code, child.last_lines())
            if delay is None:
                return 1
            child.kill()  # the remaining processes of its group
            self._children.remove(child)
            cause = "was killed" if is_killed else "has ended"
            self._say(f"the {name} {cause}; starting another{f' in {delay:g} s' if delay else ''}")
            await asyncio.sleep(delay)
            self._restarted.append(name)
            self._has_started.set()

    def _start_child(self, name: str) -> Child:
        arguments = ["-A", self._target.location, *self._arguments(name)]
        if self._options.verbose:
            self._say(f"starting {name}: celery {' '.join(arguments)}")
        child = Child(
            name,
            [sys.executable, "-m", "celery", *arguments],
            env=self._env,
            folder=self._target.folder,
            screen=self._screen,
            has_terminal=self._has_debugger and name == "worker",
        )
        self._children.append(child)
        if self._folder is not None:
            (self._folder / f"{name}.pid").write_text(f"{child.pid}\n")
        return child

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

    async def _watch_health(self) -> int:
        """Report each time that the fleet has become ready after the start of a component. Never returns."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                await self._has_started.wait()
                self._has_started.clear()
                await asyncio.sleep(STALE_HEALTH if self._is_ready else 0)
                await self._wait_until_ready(client)
                if not self._has_started.is_set():
                    self._report_ready()

    async def _wait_until_ready(self, client: httpx.AsyncClient) -> None:
        reported_at = time.monotonic()
        while True:
            with suppress(httpx.HTTPError, ValueError):
                response = await client.get(self._url + PROBE)
                if response.status_code == httpx.codes.OK:
                    return
                if time.monotonic() - reported_at > PROGRESS_INTERVAL:
                    reported_at = time.monotonic()
                    self._say(f"waiting for {unready(response.json())}")
            await asyncio.sleep(HEALTH_INTERVAL)

    def _report_ready(self) -> None:
        self._screen.is_folded = False
        if not self._is_ready:
            self._is_ready = True
            self._screen.show(self._next_steps())
        for name in self._restarted:
            self._say(f"the {name} is ready")
        self._restarted = []

    def _next_steps(self) -> str:
        app, seconds = self._target.app, time.monotonic() - self._started_at
        agents = A2A.of(app).agents
        if self._folder is not None:
            return tour(agents, self._url, self._folder, seconds)
        has_page = load_settings(app.conf, self._env, app.namespace).ui
        return ready_lines(agents, self._url, self._grpc_port, seconds, self._target.location, has_page=has_page)

    async def _wait_for_code(self) -> None:
        """Wait for a change of the code that leaves no syntax error in the changed files."""
        async for files in changed_files(self._code):
            names = ", ".join(str(file.relative_to(self._code)) for file in files[:SHOWN_FILES])
            names += " and more" if len(files) > SHOWN_FILES else ""
            errors = list(filter(None, map(syntax_error, files)))
            if not errors:
                self._say(f"{names} changed; restarting {', '.join(COMPONENTS)}")
                return
            for line in "\n".join(errors).splitlines():
                self._say(line)
            self._say(f"{names} changed; nothing is restarted, because of the syntax error")

    def _report(self, name: str, code: int, last_lines: list[str]) -> None:
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        self._say(f"the {name} ended unexpectedly ({cause}){'; its last lines:' if last_lines else ''}")
        for line in last_lines:
            self._say(f"  {line}")

    async def _stop(self) -> None:
        """Stop the children, and then Redis. A second signal kills the children immediately."""
        await first(self._stop_children(SIGQUIT_GRACE), self._signals.get())
        self._kill_children()
        self._addresses.remove()
        if self._redis is not None:
            self._redis.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._env:
            self._say("all stopped")

    async def _stop_children(self, quit_grace: float | None) -> None:
        """Stop the children, newest first: all with SIGTERM, then the worker with SIGQUIT, then all with SIGKILL.

        Args:
            quit_grace: Seconds from SIGQUIT to SIGKILL. None sends no SIGQUIT, and waits for the children without a
                limit, because an agent may be in a debugger.
        """
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
        if not await self._have_ended(SIGTERM_GRACE):
            if quit_grace is None:
                self._say("waiting for the worker, whose agent may be in the debugger")
            for child in self._children:
                if child.name == "worker" and quit_grace is not None:
                    child.signal(signal.SIGQUIT)
            await self._have_ended(quit_grace)
        self._kill_children()

    async def _have_ended(self, seconds: float | None) -> bool:
        """Wait up to `seconds`, or without a limit if None, and return True when all children have ended."""
        try:
            async with asyncio.timeout(seconds):
                for child in self._children:
                    await child.wait()
        except TimeoutError:
            return False
        return True

    def _kill_children(self) -> None:
        for child in reversed(self._children):
            child.kill()  # including the remaining processes in an ended child's group
        self._children.clear()

    def _say(self, line: str) -> None:
        self._screen.say(DEV, line)


async def first(*coroutines: Coroutine[Any, Any, T]) -> T:
    """Run `coroutines` until one of them returns, cancel the others, and return its result."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def unready(health: Mapping[str, str]) -> str:
    """Return the components that are not ready, with the reasons in the gateway's report.

    The reason for missing workers advises the user to start one, which the supervisor has done.
    """
    reasons = {part: reason for part, reason in health.items() if part != "status" and reason != "ok"}
    return "; ".join(part if part == "workers" else f"{part}: {reason}" for part, reason in reasons.items())


def _stop_signals() -> tuple[signal.Signals, ...]:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started with nohup: keep running without the terminal
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@contextmanager
def _restored_terminal() -> Iterator[None]:
    """Restore the terminal at the end. A debugger that is killed at its prompt leaves the terminal without echo."""
    modes = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, modes)


async def _require_store(url: str) -> None:
    """Wait until the store responds.

    Raises:
        StoreUnavailable: The store does not respond.
    """
    async with aclosing(AsyncStore(url)) as store:
        await require_reachable(store)
