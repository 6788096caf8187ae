"""The supervisor of a whole fleet on one machine: Redis, worker, watcher and gateway.

Whatever ends it ends all that it started: in order when it can (Ctrl-C, SIGTERM, a child that died), by the `Leash`
when it can't (SIGKILL).
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

from ..app import A2A
from ..errors import A2ACeleryError
from ..loading import load_settings
from ..store import AsyncStore
from ..store.start_check import require_reachable
from .addresses import local_url
from .children import Child, Screen
from .embedded import EmbeddedRedis
from .environment import with_embedded, with_redis
from .leash import Leash
from .try_next import what_to_try

SOFT = 2.3
"""Seconds from SIGTERM to SIGQUIT, which a busy worker takes as: stop now."""

HARD = 0.7
"""Seconds from there to SIGKILL. With Redis' own `STOP_TIMEOUT`, all is over within 5 seconds."""

PATIENCE = 15.0
"""Seconds after which it says what it waits for, and again after each."""

ME = "dev"
PROBE = "/health/ready"


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What can be chosen; the options of the commands, see `dev_options`."""

    pool: str
    concurrency: int
    host: str
    port: int
    grpc_port: int | None
    redis_url: str | None
    data: Path | None


@dataclass(frozen=True, slots=True)
class Target:
    """The app to run, where other processes find it ("module" or "module:attribute"), and from which folder.

    Folder None: the current one.
    """

    app: Celery
    location: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A child's process is gone."""

    name: str
    code: int | None
    last_lines: Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class _Health:
    """What the gateway found: "ok" or a reason, per part."""

    found: dict[str, str]
    ready: bool


class Supervisor:
    """Starts the parts, waits, and ends them. All that happens comes through one queue, signals too."""

    def __init__(self, target: Target, options: DevOptions, port: int, grpc_port: int | None) -> None:
        self._target = target
        self._options = options
        self._port = port
        self._grpc_port = grpc_port
        self._url = local_url(options.host, port)
        self._screen = Screen()
        self._redis: EmbeddedRedis | None = None
        self._children: list[Child] = []
        self._begun = time.monotonic()
        self._fine: set[str] = set()
        # a SimpleQueue may be written to from a signal handler; a Queue or an Event may deadlock there
        self._happenings: SimpleQueue[_Ended | _Health | signal.Signals] = SimpleQueue()

    def run(self, environ: Mapping[str, str], redis_url: str | None) -> int:
        """Runs until it is told to stop (0) or a child dies (1); `redis_url` None: an embedded Redis.

        Raises:
            click.ClickException: it could not start; nothing runs.
        """
        before = {number: signal.signal(number, self._signalled) for number in _stop_signals()}
        leash = Leash()
        try:
            env = self._store(environ, redis_url, leash)
            self._start_children(env, leash)
            Thread(target=self._watch_health, daemon=True, name="health").start()
            return self._until_over()
        except A2ACeleryError as e:
            raise click.ClickException(str(e)) from e
        finally:
            self._stop()
            leash.let_go()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _store(self, environ: Mapping[str, str], redis_url: str | None, leash: Leash) -> dict[str, str]:
        """The children's environment; the store it names answers, and the settings in it are fine."""
        app = self._target.app
        if redis_url is None:
            self._redis = EmbeddedRedis(self._options.data)
            leash.hold_folder(self._redis.home)
            self._redis.start(leash.hold_group)
            Thread(target=self._watch_redis, args=(self._redis,), daemon=True, name="redis-end").start()
            kept = f"keeps its data in {self._options.data}" if self._options.data else "its data is gone at the end"
            self._say(f"embedded Redis at {self._redis.store_url}; {kept}")
            lasting = self._options.data is not None
            env = with_embedded(app, environ, self._redis.store_url, self._redis.broker_url, lasting=lasting)
        else:
            env = with_redis(app, environ, redis_url)
        settings = load_settings(app.conf, env, app.namespace)
        asyncio.run(_require_store(settings.store_url))
        return env

    def _start_children(self, env: Mapping[str, str], leash: Leash) -> None:
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
                ended=lambda child: self._happenings.put(_Ended(child.name, child.code, child.last_lines)),
            )
            leash.hold_group(child.pgid)
            self._children.append(child)

    def _until_over(self) -> int:
        """Tells what happens until it is time to stop; gives the exit code."""
        patience = PATIENCE
        while True:
            match self._happenings.get():
                case _Ended() as end:
                    self._report(end)
                    return 1
                case _Health() as health:
                    self._progress(health)
                    if health.ready:
                        self._screen.show(self._what_to_try())
                    elif self._elapsed() > patience:
                        patience += PATIENCE
                        missing = "; ".join(f"{part}: {state}" for part, state in health.found.items() if state != "ok")
                        self._say(f"still waiting for {missing}")
                case number:
                    self._say(f"stopping ({number.name})")
                    return 0

    def _progress(self, health: _Health) -> None:
        if not self._fine:
            self._say(f"gateway answers at {self._url} after {self._elapsed():.1f} s")
        fine = {part for part, state in health.found.items() if state == "ok"}
        for part in sorted(fine - self._fine):
            self._say(f"{part}: ok after {self._elapsed():.1f} s")
        self._fine |= fine | {"gateway"}

    def _report(self, end: _Ended) -> None:
        how = f"by {signal.Signals(-end.code).name}" if end.code is not None and end.code < 0 else f"code {end.code}"
        self._say(f"the {end.name} ended unexpectedly ({how}); its last lines:")
        for line in end.last_lines():
            self._say(f"  {line}")

    def _what_to_try(self) -> str:
        target = self._target
        return what_to_try(A2A.of(target.app).agents, self._url, self._grpc_port, target.location, target.folder)

    def _stop(self) -> None:
        """Ends the children, newest first, then Redis: asks, insists, forces. A second signal forces at once."""
        for child in reversed(self._children):
            child.signal(signal.SIGTERM)
        if self._wait_for_ends(SOFT):
            for child in self._children:
                if child.name == "worker":
                    child.signal(signal.SIGQUIT)
            self._wait_for_ends(HARD)
        for child in reversed(self._children):
            child.kill()  # and what an ended one left of its group
        if self._redis is not None:
            self._redis.stop()
        if self._children:
            self._say("all stopped")

    def _wait_for_ends(self, seconds: float) -> bool:
        """Waits for the children; False when there is no reason to wait longer."""
        deadline = time.monotonic() + seconds
        while any(child.running for child in self._children):
            try:
                happening = self._happenings.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return True
            if isinstance(happening, signal.Signals):
                return False
        return False

    def _watch_health(self) -> None:
        """Asks the gateway until all is well. In a thread: its answer takes as long as a broker does."""
        with httpx.Client(trust_env=False, timeout=10) as client:
            while True:
                with suppress(httpx.HTTPError, ValueError):
                    answer = client.get(self._url + PROBE)
                    found = {part: str(state) for part, state in answer.json().items() if part != "status"}
                    ready = answer.status_code == 200
                    self._happenings.put(_Health(found, ready))
                    if ready:
                        return
                time.sleep(0.2)

    def _watch_redis(self, server: EmbeddedRedis) -> None:
        assert server.process is not None
        code = server.process.wait()
        self._happenings.put(_Ended("redis", code, server.last_lines))

    def _signalled(self, number: int, _: object) -> None:
        self._happenings.put(signal.Signals(number))

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _say(self, line: str) -> None:
        self._screen.say(ME, line)


def _stop_signals() -> tuple[signal.Signals, ...]:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: it shall outlive its terminal
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


async def _require_store(url: str) -> None:
    """Returns when the store answers.

    Raises:
        StoreUnavailable: it does not.
    """
    store = AsyncStore(url)
    try:
        await require_reachable(store)
    finally:
        await store.aclose()
