"""Health checks: ``/health/live`` for the process, and ``/health/ready`` for the store, the broker and at least one
worker that consumes the queue of an agent.

`report_start` logs the lines of `start_lines`.

Workers that Celery's remote control does not reach are found by their announcements in the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from celery import Celery
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import queue_of
from ..errors import A2ACeleryError, StoreUnavailable
from ..integrations.kombu import require_confirmed_messages
from ..settings import default_of, visible_settings
from ..settings.loading import IN_ENVIRONMENT, LoadedSettings, source_of
from ..settings.urls import BROKER_VARIABLE, BROKER_WRITE_VARIABLE, url_address
from ..store import AsyncStore, Keys
from ..store.admin.start_check import announced_workers
from .auth.from_settings import SCHEME_VARIABLES
from .cards import signatures_line

WORKER_TIMEOUT = 1.0
"""Seconds that workers have to answer a query over the broker. The first answer of a worker that consumes an agent's
queue ends the wait."""

STORE_TIMEOUT = 2.0
"""Seconds that the store has to reply to a command."""

BROKER_TIMEOUT = 2.0
"""Seconds that the broker has to accept a connection. If the broker accepts a connection but never responds, the
timeout of `SingleCall.result` applies."""

CONFIRM_TIMEOUT = 1.0
"""Seconds that RabbitMQ has to confirm a message. RabbitMQ confirms none in a memory or disk alarm."""

RESULT_FRESH_FOR = 1.0
"""Seconds for which a result is reused, so that many probes cause a single check."""


class Health:
    """Readiness checks of the store, the broker and the workers."""

    def __init__(
        self, app: Celery, store: AsyncStore, keys: Keys, agents: Mapping[str, Agent], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._app = app
        self._keys = keys
        self._agents = agents
        self._clock = clock
        self._store = store
        self._checked_at = float("-inf")
        self._found: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._connecting = SingleCall(self._connect)
        self._inspecting = SingleCall(self._inspect)

    def routes(self) -> list[Route]:
        """Return the routes ``/health/live`` and ``/health/ready``."""
        return [Route("/health/live", self._live), Route("/health/ready", self._ready)]

    async def check(self) -> dict[str, str]:
        """Return "ok" or a description of the problem for each of "store", "broker" and "workers"."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at > RESULT_FRESH_FOR:
                store, broker = await asyncio.gather(_outcome_of(self._ping), _outcome_of(self._broker))
                workers = await _outcome_of(self._workers) if broker == "ok" else "unknown: the broker is unavailable"
                self._found = {"store": store, "broker": broker, "workers": workers}
                self._checked_at = self._clock.monotonic()
            return self._found

    async def _ping(self) -> None:
        await asyncio.wait_for(self._store.ping(), STORE_TIMEOUT)

    async def _broker(self) -> None:
        await self._connecting.result(BROKER_TIMEOUT + 1)

    def _connect(self) -> None:
        with self._app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=BROKER_TIMEOUT)
            require_confirmed_messages(connection, CONFIRM_TIMEOUT)

    def _inspect(self) -> list[list[str]]:
        """Return the queues of the workers that replied before the first worker that serves an agent, and its own."""
        try:
            return self._query_workers()
        except Exception:  # the pooled connection may be older than a restart of the broker
            return self._query_workers()

    def _query_workers(self) -> list[list[str]]:
        worker_queues: list[list[str]] = []

        def collect(reply: Mapping[str, Any]) -> None:
            worker_queues.extend([queue["name"] for queue in queues or ()] for queues in reply.values())
            if self._serve_agents(worker_queues):
                raise _Served

        # active_queues, not ping: a worker may respond to pings without consuming a queue
        with suppress(_Served):
            self._app.control.broadcast("active_queues", reply=True, timeout=WORKER_TIMEOUT, callback=collect)
        return worker_queues

    def _serve_agents(self, worker_queues: Iterable[list[str]]) -> bool:
        """Return True if a worker consumes the queue of an agent. A run with a `route`, or whose options name an
        exchange and no queue, may be in any queue."""
        consumed_queues = {queue for queues in worker_queues for queue in queues}
        agents = self._agents.values()
        if any(agent.route is not None for agent in agents):
            return bool(consumed_queues)
        agent_queues = {queue_of(self._app, agent) for agent in agents}
        return bool(consumed_queues) and (None in agent_queues or not agent_queues.isdisjoint(consumed_queues))

    async def _workers(self) -> None:
        worker_queues = await self._announced_queues()
        if self._serve_agents(worker_queues):
            return
        worker_queues += await self._inspecting.result(WORKER_TIMEOUT + BROKER_TIMEOUT)
        if not worker_queues:
            raise _Missing(f"no worker answered within {WORKER_TIMEOUT:g} s: start one with celery -A … worker")
        if not any(worker_queues):
            raise _Missing("no worker consumes a queue")
        if not self._serve_agents(worker_queues):
            raise _Missing("no worker consumes the queue of an agent")

    async def _announced_queues(self) -> list[list[str]]:
        """Return the queues of each announced worker, or an empty list if the store does not respond."""
        try:
            announcements = await asyncio.wait_for(self._store.run(announced_workers(self._keys)), STORE_TIMEOUT)
        except (StoreUnavailable, TimeoutError):
            return []
        return [json.loads(announcement)["queues"] for announcement in announcements]

    async def _live(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> JSONResponse:
        states = await self.check()
        ready = all(state == "ok" for state in states.values())
        return JSONResponse({"status": "ok" if ready else "unavailable", **states}, status_code=200 if ready else 503)


class SingleCall:
    """Blocking function that is called in a thread. While a call hangs, no further call is started."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._made: asyncio.Future[Any] | None = None

    async def result(self, timeout: float, *arguments: Any) -> Any:
        """Call the function with `arguments`, and return its result.

        Raises:
            TimeoutError: The call takes more than `timeout` seconds, or the previous call is still running.
        """
        if self._made is not None and not self._made.done():
            raise TimeoutError
        loop = asyncio.get_running_loop()
        self._made = call = loop.create_future()
        # A daemon thread instead of to_thread: at exit, Python waits for the threads of to_thread, even if one hangs.
        Thread(target=self._make, args=(loop, call, arguments), name="a2a-health", daemon=True).start()
        completed_calls, _ = await asyncio.wait({call}, timeout=timeout)
        if not completed_calls:
            call.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise TimeoutError
        return call.result()

    def _make(self, loop: asyncio.AbstractEventLoop, call: asyncio.Future[Any], arguments: Sequence[Any]) -> None:
        settle: Callable[[Any], None]
        try:
            settle, outcome = call.set_result, self._call(*arguments)
        except Exception as e:
            settle, outcome = call.set_exception, e
        with suppress(RuntimeError):  # the event loop is closed, so no caller waits for the result
            loop.call_soon_threadsafe(settle, outcome)


class _Missing(A2ACeleryError):
    pass


class _Served(Exception):
    """Signal that ends the collection of workers' replies, because a worker serves an agent."""


async def _outcome_of(check: Callable[[], Awaitable[None]]) -> str:
    """Run `check` and return "ok" or a description of its error. The texts of other libraries' errors are not returned,
    because they may contain an address."""
    try:
        await check()
    except A2ACeleryError as e:
        return str(e)
    except TimeoutError:
        return "no answer in time"
    except Exception as e:
        return f"unreachable ({type(e).__name__})"
    return "ok"


logger = logging.getLogger(__name__)

BROKER_VARIABLES = (BROKER_WRITE_VARIABLE, BROKER_VARIABLE)
"""Environment variables that take precedence over Celery's configuration."""

SCHEMES = {
    "auth_jwks_url": "bearer tokens",
    "auth_jwt_key": "bearer tokens",
    "auth_api_keys": "API keys",
    "auth_identity_header": "client certificates",
}
"""Authentication schemes by the setting that enables each."""

NO_AUTHENTICATION = (
    "none: every client that reaches the gateway can run agents, read all tasks and cancel them. "
    f"Set {SCHEME_VARIABLES}. A2A_AUTH_JWT_KEY_FILE and A2A_AUTH_API_KEYS_FILE read a secret from a file."
)


def start_lines(app: Celery, loaded_settings: LoadedSettings) -> dict[str, str]:
    """Return the store, the broker, authentication, webhook signatures, and the configured settings with sources. A
    value is "" if authentication or signatures are off, or no other setting is configured."""
    return {
        "store": _with_source(url_address(loaded_settings.settings.store_url), loaded_settings, "store_url"),
        "broker": broker_line(app),
        "authentication": authentication_line(loaded_settings),
        "signatures of webhooks": signatures_line(loaded_settings.settings),
        "settings": settings_line(loaded_settings),
    }


def report_start(app: Celery, loaded_settings: LoadedSettings) -> None:
    """Log the configuration of a gateway."""
    for about, line in start_lines(app, loaded_settings).items():
        if line:
            logger.info("%s: %s", about, line)
        elif about == "authentication":
            logger.warning("authentication: %s", NO_AUTHENTICATION)


def broker_line(app: Celery) -> str:
    """Return the broker's URL without the password, and the source of the URL."""
    variable = next((name for name in BROKER_VARIABLES if os.environ.get(name)), "")
    key = "broker_write_url" if app.conf.get("broker_write_url") else "broker_url"
    source = f"{variable}{IN_ENVIRONMENT}" if variable else source_of(key, app.conf, app.namespace)
    connection = app.connection_for_write()
    url = connection.as_uri()
    if not connection.info().get("password"):
        url = url.replace("://:**@", "://")  # kombu masks a password that is not set
    return f"{url} ({source})"


def authentication_line(loaded_settings: LoadedSettings) -> str:
    """Return the enabled authentication schemes and the sources of their settings, or "" if there are none."""
    scheme_names = {name for name in SCHEMES if getattr(loaded_settings.settings, name) is not None}
    return ", ".join(
        _with_source(scheme, loaded_settings, name) for name, scheme in SCHEMES.items() if name in scheme_names
    )


def settings_line(loaded_settings: LoadedSettings) -> str:
    """Return the configured settings, except `store_url` and the settings in `SCHEMES`, with their sources. The values
    of secrets are omitted."""
    values = visible_settings(loaded_settings.settings)
    lines = []
    for name, source in loaded_settings.sources.items():
        if name == "store_url" or name in SCHEMES:
            continue
        if name not in values:
            lines.append(f"{name} ({source})")
        elif values[name] is None and default_of(name) is None:  # for example an empty variable of a compose file
            lines.append(f"{name} not set ({source} is empty)")
        else:
            lines.append(f"{name} = {values[name]!r} ({source})")
    return ", ".join(lines)


def _with_source(text: str, loaded_settings: LoadedSettings, name: str) -> str:
    return f"{text} ({loaded_settings.sources.get(name, 'the default')})"
