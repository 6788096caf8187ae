"""Supervisor of a complete fleet on one machine: Redis, a worker, a watcher and a gateway.

On Ctrl-C, on SIGTERM, and when a child dies, the supervisor stops its children in order. If the supervisor is killed by
SIGKILL, the `ProcessGuard` stops them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_urlsafe
from threading import Event, Lock, Thread

import click
import httpx
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from celery import Celery

from ...agents import Agent
from ...app import A2A
from ...crypto.jwk_sets import is_loopback
from ...errors import A2ACeleryError, ConfigError
from ...settings.loading import load_settings
from ...settings.urls import is_redis_url, is_sentinel_url
from ...store import AsyncStore
from ...store.admin.start_check import require_reachable
from .embedded_redis import EmbeddedRedis
from .process_guard import ProcessGuard, signal_group

STORE = "A2A_STORE_URL"
BROKER = "CELERY_BROKER_URL"
RESULTS = "CELERY_RESULT_BACKEND"
PUBLIC = "A2A_PUBLIC_URL"
SECRET_KEY = "A2A_SECRET_KEY"
NETWORKS = "A2A_ALLOW_NETWORKS"


def with_embedded(
    app: Celery, environ: Mapping[str, str], store_url: str, broker_url: str, *, lasting: bool, loopback: bool
) -> dict[str, str]:
    """Return the environment with the embedded Redis as store and broker, and as result backend if that is a Redis.

    URLs in the environment are kept. URLs in the app's configuration are replaced, because they are meant for
    production. Unless the data is `lasting`, a secret key is generated. If, in addition, the gateway listens only on
    `loopback`, webhooks to this machine are allowed so that users can try them. A gateway that other machines can reach
    must not allow such webhooks.
    """
    env = {BROKER: broker_url, **_common(environ), STORE: store_url}
    if is_redis_url(str(app.conf.result_backend or "")):
        env.setdefault(RESULTS, broker_url)
    if not lasting and not app.conf.get("a2a_secret_key"):
        env.setdefault(SECRET_KEY, token_urlsafe(32))
    if not lasting and loopback and not app.conf.get("a2a_allow_networks"):
        env.setdefault(NETWORKS, "127.0.0.0/8 ::1/128")
    return env


def with_redis(app: Celery, environ: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the environment with the Redis at `url` as store, and also as broker unless a broker is configured.

    Raises:
        ConfigError: `url` names Sentinels, and no broker is configured. kombu needs the name of the primary from the
            app.
    """
    env = {**_common(environ), STORE: url}
    if not app.conf.broker_url:  # includes Celery's environment variable
        if is_sentinel_url(url):
            raise ConfigError("the store uses Sentinels: set broker_url, and broker_transport_options, in the app")
        env[BROKER] = celery_url(url)
    return env


def celery_url(url: str) -> str:
    """Return a store URL in Celery's format."""
    for ours, theirs in (("unix://", "redis+socket://"), ("valkeys://", "rediss://"), ("valkey://", "redis://")):
        if url.startswith(ours):
            url = theirs + url[len(ours) :]
    return url.replace("db=", "virtual_host=") if url.startswith("redis+socket://") else url


def _common(environ: Mapping[str, str]) -> dict[str, str]:
    # Output is unbuffered, so that the output of agents appears immediately. A public URL in the app's configuration
    # does not belong to this gateway. A public URL in the environment may belong to a tunnel and is kept.
    return {PUBLIC: "", **environ, "PYTHONUNBUFFERED": "1"}


SDK_SNIPPET = """\
import asyncio
from a2a.client import create_client
from a2a.helpers import get_stream_response_text, new_text_message
from a2a.types import Role, SendMessageRequest

async def main():
    async with await create_client({url!r}) as client:
        request = SendMessageRequest(message=new_text_message({text!r}, role=Role.ROLE_USER))
        async for event in client.send_message(request):
            print(event.WhichOneof("payload"), get_stream_response_text(event))

asyncio.run(main())"""

TEXT = "Hello"


def next_steps(agents: Mapping[str, Agent], url: str, grpc_port: int | None, location: str, folder: Path | None) -> str:
    """Return the commands to try. `url` is the gateway's, and `location` and `folder` describe the app; see
    `AppLocation`."""
    first = next(iter(agents))
    # a streaming agent, so that the second example uses a different agent from the first
    streaming = [name for name, agent in agents.items() if agent.card.capabilities.streaming and name != first]
    second = streaming[0] if streaming else first
    width = max(map(len, agents))
    lines = ["", f"# Ready: {len(agents)} agent{'s' if len(agents) > 1 else ''} at {url}"]
    for name, agent in agents.items():
        lines.append(f"#   {name:{width}}  {_agent_url(url, name)}  {_one_line(agent.card.description)}".rstrip())
    lines += [f"# Card of the first: {url}{AGENT_CARD_WELL_KNOWN_PATH}"]
    if grpc_port is not None:
        lines += [f"# gRPC: port {grpc_port}"]
    lines += ["", "# A message, over HTTP+JSON:", _curl("curl -s", f"{_agent_url(url, first)}message:send", "try-1")]
    lines += ["", "# A stream:", _curl("curl -sN", f"{_agent_url(url, second)}message:stream", "try-2")]
    snippet = SDK_SNIPPET.format(url=_agent_url(url, second), text=TEXT)
    lines += ["", "# With the SDK's client:", f"{shlex.quote(sys.executable)} - <<'END'", snippet, "END"]
    lines += ["", "# From the command line; also get, tail, cancel, list:"]
    lines += [f"{_celery(location, folder)} a2a send {second} {TEXT} --url {url}"]
    lines += ["", "# Ctrl-C stops everything", ""]
    return "\n".join(lines)


def _agent_url(url: str, name: str) -> str:
    return f"{url}/agents/{name}/"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _curl(command: str, url: str, message_id: str) -> str:
    body = {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": TEXT}]}}
    headers = "-H 'A2A-Version: 1.0' -H 'Content-Type: application/json'"
    return f"{command} {url} {headers} \\\n  -d '{json.dumps(body)}'"


def _celery(location: str, folder: Path | None) -> str:
    """Return a ``celery -A location`` command that works in the current folder."""
    beside = Path(sys.executable).parent / "celery"
    on_path = shutil.which("celery")
    command = "celery" if on_path and os.path.samefile(Path(on_path).parent, beside.parent) else str(beside)
    if not beside.exists():
        command = f"{shlex.quote(sys.executable)} -m celery"
    if folder is not None and folder != Path.cwd():
        command += f" --workdir {shlex.quote(str(folder))}"
    return f"{command} -A {location}"


REMEMBERED = 20
"""Number of output lines that are repeated if a child ends unexpectedly."""

OUTPUT_TIMEOUT = 0.5
"""Seconds to wait for the output of an ended child, whose pipe a grandchild may hold open."""

NAME_WIDTH = 7
COLOURS = {"dev": "cyan", "redis": "red", "worker": "green", "watcher": "yellow", "gateway": "magenta"}


class Screen:
    """Terminal shared by the supervisor and its children. Lines are written as a whole, prefixed with the name of their
    process."""

    def __init__(self) -> None:
        self._lock = Lock()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an agent may print characters that this terminal cannot show

    def say(self, who: str, line: str) -> None:
        """Write one line, in colour if the output is a terminal."""
        self.show(click.style(f"{who:{NAME_WIDTH}} | ", fg=COLOURS.get(who)) + line)

    def show(self, text: str) -> None:
        """Write lines unchanged."""
        # a closed terminal must not keep the supervisor from stopping its children
        with self._lock, suppress(OSError):
            click.echo(text)


class Child:
    """A running child process and its output.

    Attributes:
        code: Exit code, or the negative number of the signal that ended the process, or None while the process runs.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path | None,
        screen: Screen,
        ended: Callable[[Child], None],
        hide: str | None = None,
    ) -> None:
        """Start the process. When the process ends, `ended` is called from a thread. Lines that contain `hide` are not
        shown."""
        self.name = name
        self.code: int | None = None
        self._screen = screen
        self._hide = hide
        self._last: deque[str] = deque(maxlen=REMEMBERED)
        self._ended_event = Event()
        self._popen = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()
        Thread(target=self._wait, args=(ended,), name=f"{name}-end", daemon=True).start()

    @property
    def pgid(self) -> int:
        """Id of the process group whose leader is the child."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        return not self._ended_event.is_set()

    def last_lines(self) -> list[str]:
        """Return the last lines of an ended child."""
        self._reader.join(OUTPUT_TIMEOUT)
        return list(self._last)

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its group."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pgid, number)

    def kill(self) -> None:
        """Kill the process group, and return when the process has ended and its output has been shown."""
        signal_group(self.pgid, signal.SIGKILL)
        self._ended_event.wait()
        self._reader.join(OUTPUT_TIMEOUT)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            for line in lines:
                if self._hide is None or self._hide not in line:
                    self._last.append(line.rstrip("\n"))
                    self._screen.say(self.name, self._last[-1])

    def _wait(self, ended: Callable[[Child], None]) -> None:
        self.code = self._popen.wait()
        self._ended_event.set()
        ended(self)


SIGTERM_GRACE = 2.3
"""Seconds from SIGTERM to SIGQUIT, which makes a busy worker stop immediately."""

SIGQUIT_GRACE = 0.7
"""Seconds from SIGQUIT to SIGKILL. Including Redis' `STOP_TIMEOUT`, a stop takes at most 5 seconds."""

PROGRESS_INTERVAL = 15.0
"""Seconds between two messages about components that are not ready."""

DEV = "dev"
PROBE = "/health/ready"


@dataclass(frozen=True, slots=True)
class DevOptions:
    """Options of ``dev`` and ``demo``; see `dev_options`."""

    pool: str
    concurrency: int
    host: str
    port: int
    grpc_port: int | None
    redis_url: str | None
    data: Path | None


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
    """Event: the process of a child has ended."""

    name: str
    code: int | None
    last_lines: Callable[[], list[str]]


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
        self._screen = Screen()
        self._redis: EmbeddedRedis | None = None
        self._children: list[Child] = []
        self._started_at = time.monotonic()
        self._healthy: set[str] = set()
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
        """Report events until the fleet must stop. Return the exit code."""
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
            self._say(f"gateway responds at {self._url} after {self._elapsed():.1f} s")
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

    def _watch_health(self) -> None:
        """Poll the gateway until it is ready. This method runs in a thread, because a response may wait for the
        broker."""
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


def local_url(host: str, port: int) -> str:
    """Return the URL at which a client on this machine reaches a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host)
    if shown is None:
        shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
