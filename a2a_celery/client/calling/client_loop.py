"""Per-process client of remote agents: a background thread whose event loop owns one pool of connections.

A step contains only the name of an agent. The agent's address and credentials stay in the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeVar

import httpx

from ...concurrency import LoopThread
from ...errors import ConfigError
from ..connection.card_cache import CardCache
from ..connection.transports import Credentials, HeaderSource, tenant_error, url_error
from ..errors import AgentUnreachable
from ..remote_agent import CONNECT_TIMEOUT, RemoteAgent
from .progress import PollRateLimiter


@dataclass(frozen=True, slots=True)
class Remote:
    """Address and credentials of a remote agent.

    Attributes:
        url: Base address of the agent.
        headers: Headers of every request, including the request for the card. Either a mapping, or a function or
            coroutine function that returns the headers of the next request.
        bearer: Bearer token, or None.
        api_key: API key, or None.
        idempotent: True if the agent recognizes repeated messages; see `RemoteAgent`.
        hosts: Other hosts than that of `url` at which the interfaces of the card may be, or None; see `RemoteAgent`.
        tenant: Tenant of every request, or None; see `RemoteAgent`.

    Raises:
        ConfigError: The URL, the token, the key or the tenant is invalid.
    """

    url: str
    headers: HeaderSource | None = field(default=None, repr=False)
    bearer: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    idempotent: bool = False
    hosts: Collection[str] | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        if error := url_error(self.url) or tenant_error(self.tenant):
            raise ConfigError(error)
        Credentials(self.headers, bearer=self.bearer, api_key=self.api_key)  # refuses invalid values


def find_remote(remotes: Mapping[str, Remote], name: object) -> Remote:
    """Return the remote that is registered under `name`, or a remote without credentials if `name` is a URL.

    Raises:
        ConfigError: `name` is neither a known name nor a valid URL without a password.
    """
    if isinstance(name, str) and name in remotes:
        return remotes[name]
    if isinstance(name, str) and "://" not in name:
        names = ", ".join(sorted(remotes)) or "none"
        raise ConfigError(f"no remote is called {name!r}, and it is not a URL; known: {names}")
    return Remote(name)  # type: ignore[arg-type]


T = TypeVar("T")

REQUEST_TIMEOUT = 30.0
"""Seconds without a byte after which a request fails. The limit is short because a request occupies a worker slot."""

CALL_TIMEOUT = 120.0
"""Maximum duration of a complete call, in seconds. Unlike `REQUEST_TIMEOUT`, the limit also applies to gRPC calls and
to agents that send one byte at a time."""

RECONNECT_TIMEOUT = 1.0
"""Seconds for which a request to an agent is retried before the step itself is retried."""

PUSH_EVENTS = {"A2A-Push-Events": "terminal"}
"""Header that limits an A2A Celery agent's webhook to terminal and interrupted states."""


class ClientLoop:
    """Client of one process, created on the first call of the process and therefore after any fork.

    Args:
        call_timeout: Maximum duration of a complete call, in seconds.
    """

    def __init__(self, call_timeout: float = CALL_TIMEOUT) -> None:
        self._call_timeout = call_timeout
        self._loop = LoopThread("a2a-calls").loop
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(REQUEST_TIMEOUT, connect=CONNECT_TIMEOUT))
        # all remotes share the pool, so the cookies of one caller must not reach the next request
        self._http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._cards: dict[int, CardCache] = {}  # per remote, because a card may depend on the credentials
        self._public_cards = CardCache()
        self.poll_limiter = PollRateLimiter()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run `call` on the event loop and return its result. If the calling thread is interrupted, `call` is
        cancelled.

        Raises:
            AgentUnreachable: The call takes longer than the timeout.
        """
        future = asyncio.run_coroutine_threadsafe(_call_with_timeout(call, self._call_timeout), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def agent(self, remote: Remote, trace: Mapping[str, str] | None = None, *, tenant: str = "") -> RemoteAgent:
        """Return a client for `remote` that sends the headers `trace`. Closing the client leaves the shared connections
        open. `tenant` takes precedence over the tenant of `remote`.
        """
        credentials = Credentials(remote.headers)

        async def headers() -> dict[str, str]:
            return {**PUSH_EVENTS, **(trace or {}), **await credentials.headers()}

        private = (remote.headers, remote.bearer, remote.api_key) != (None, None, None)
        return RemoteAgent(
            remote.url,
            headers=headers,
            bearer=remote.bearer,
            api_key=remote.api_key,
            http=self._http,
            cards=self._cards.setdefault(id(remote), CardCache()) if private else self._public_cards,
            idempotent=remote.idempotent,
            reconnect_timeout=RECONNECT_TIMEOUT,
            hosts=remote.hosts,
            tenant=tenant or remote.tenant,
        )


async def _call_with_timeout(call: Coroutine[Any, Any, T], timeout: float) -> T:
    try:
        async with asyncio.timeout(timeout):
            return await call
    except TimeoutError as e:
        raise AgentUnreachable(f"the agent sent no complete response within {timeout:g} s") from e


class ClientLoops:
    """`ClientLoop` objects by process id.

    Args:
        call_timeout: Maximum duration of a complete call, in seconds.
    """

    def __init__(self, call_timeout: float = CALL_TIMEOUT) -> None:
        self._call_timeout = call_timeout
        self._loops: dict[int, ClientLoop] = {}
        # One lock per process, because a lock that is held during a fork stays locked in the child.
        self._locks: dict[int, threading.Lock] = {}

    def current(self) -> ClientLoop:
        """Return the `ClientLoop` of the current process."""
        pid = os.getpid()
        if pid not in self._loops:
            with self._locks.setdefault(pid, threading.Lock()):
                if pid not in self._loops:
                    self._loops[pid] = ClientLoop(self._call_timeout)
        return self._loops[pid]
