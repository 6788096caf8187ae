"""Agents as one process calls them: an event loop in a thread of its own, and one pool of connections."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeVar

import httpx

from ..card_cache import CardCache
from ..credentials import Credentials
from ..failures import AgentUnreachable
from ..remote import CONNECT_TIMEOUT, RemoteAgent
from .progress import Pace
from .remotes import Remote

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds that an agent may be silent: nothing here waits for its work, and the worker's slot is held meanwhile."""

LONGEST = 120.0
"""Seconds for a call as a whole: an agent that says a byte now and then, or hangs behind gRPC, is silent to nobody."""

PATIENCE = 1.0
"""Seconds for which an agent is tried to be reached before the step is put off."""

PUSH_EVENTS = {"A2A-Push-Events": "terminal"}
"""Asks agents of ours for the events alone that end or pause a task."""


class Calls:
    """Made at the first call of a process, so after any fork."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT))
        # the pool is for all remotes: what a server remembers one caller by is not for the next one
        self._http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._cards: dict[int, CardCache] = {}  # of named remotes, which stay: each may be shown a card of its own
        self._public_cards = CardCache()
        self.pace = Pace()
        threading.Thread(target=self._loop.run_forever, name="a2a-calls", daemon=True).start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """What `call` gives, or raises; it is cancelled when the thread that waits for it is interrupted.

        Raises:
            AgentUnreachable: it has taken more than `LONGEST`.
        """
        under_way = asyncio.run_coroutine_threadsafe(_bounded(call), self._loop)
        try:
            return under_way.result()
        except BaseException:
            under_way.cancel()
            raise

    def agent(self, remote: Remote) -> RemoteAgent:
        """The agent, as `remote` says; closing it leaves the connections to others."""
        credentials = Credentials(remote.headers)

        async def headers() -> dict[str, str]:
            return {**PUSH_EVENTS, **await credentials.headers()}

        private = (remote.headers, remote.bearer, remote.api_key) != (None, None, None)
        return RemoteAgent(
            remote.url,
            headers=headers,
            bearer=remote.bearer,
            api_key=remote.api_key,
            http=self._http,
            cards=self._cards.setdefault(id(remote), CardCache()) if private else self._public_cards,
            idempotent=remote.idempotent,
            patience=PATIENCE,
        )


async def _bounded(call: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(LONGEST):
            return await call
    except TimeoutError as e:
        raise AgentUnreachable(f"the agent has not answered to the end within {LONGEST:g} s") from e


class CallsPerProcess:
    """The `Calls` of whichever process asks."""

    def __init__(self) -> None:
        self._found: dict[int, Calls] = {}
        # One lock per process: one that was held while a child was forked would stay locked there.
        self._locks: dict[int, threading.Lock] = {}

    def here(self) -> Calls:
        """This process's."""
        pid = os.getpid()
        if pid not in self._found:
            with self._locks.setdefault(pid, threading.Lock()):
                if pid not in self._found:
                    self._found[pid] = Calls()
        return self._found[pid]
