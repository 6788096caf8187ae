"""One POST, and what became of it.

Nothing is followed, kept or taken from the environment: no redirect, no cookie, no proxy. The HTTP underneath is
httpcore's and not httpx's, since it has none of these, and doesn't unpack what it gets.

Connections are `connections`' to make: HTTP/2 where that is offered, and one post at a time on each.

========================= ======================================================================================
2xx                       Delivered, as soon as the status is there
410                       Gone
429, 503                  Retry, with what Retry-After asks for
any other, also 3xx       Retry
no answer, or no HTTP     Retry; counted against the host
an address refused        Refused
the host has no place     Held: nothing was posted, so it is no attempt
========================= ======================================================================================
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self

import httpcore

from ..clock import SYSTEM_CLOCK, Clock
from ..discretion import keep_secrets_out_of_logs
from .addresses import Network
from .answers import BODY_PATIENCE, Answer, read_answer
from .connections import Connections
from .failures import had_hung_up, why
from .hosts import PATIENCE, Held, Hosts, Place
from .network import AddressRefused, CheckedBackend, Resolver, SystemResolver
from .request import PostRequest
from .targets import Target, TargetRefused, parse_target

logger = logging.getLogger(__name__)

TIMEOUT = 15.0
"""Seconds for a post in all, from the name's lookup to the answer's status."""
MOST_TRIES = 3
"""How many connections a post may find closed by the other side before it counts as not answered."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it."""

    status: int


@dataclass(frozen=True, slots=True)
class Retry:
    """It may arrive later. `reason` is for operators; `asked` is the receiver's Retry-After in seconds."""

    reason: str
    asked: float | None = None
    answer: Answer | None = None
    """What the receiver said, None if nothing that was HTTP."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The receiver wants nothing any more: its config is over."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Refused:
    """It may not be posted there: a later try helps only if the address or `allow_networks` changes. For operators."""

    reason: str


Result = Delivered | Retry | Gone | Refused | Held


@dataclass(frozen=True, slots=True)
class Way:
    """Where one post may go, and its place there."""

    target: Target
    place: Place


class Poster:
    """Makes posts in the event loop it is made in; connections are kept for the next post to the same host.

    `allow_networks` are the networks beside the public ones; `ssl_context` None trusts what the system and certifi do.
    """

    def __init__(
        self,
        allow_networks: Sequence[Network] = (),
        *,
        resolver: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        hosts: Hosts | None = None,
        timeout: float = TIMEOUT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        keep_secrets_out_of_logs()
        self._allow = tuple(allow_networks)
        self._resolver = SystemResolver(clock=clock) if resolver is None else resolver
        self._hosts = Hosts(clock=clock) if hosts is None else hosts
        self._timeout = timeout
        self._clock = clock
        self._pools = {
            "https": self._connections(ssl_context or httpcore.default_ssl_context()),
            "http": self._connections(None),
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. A resolver that was given is closed too."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._resolver.aclose)
            for pool in self._pools.values():
                closing.push_async_callback(pool.aclose)

    def held(self, url: str) -> Held | None:
        """Why a post to `url` would be held, if it waited too; None: it would not. Costs nothing and takes no place."""
        try:
            return self._hosts.held(_name(parse_target(url, self._allow)), waits=True)
        except TargetRefused:
            return None

    async def way(self, url: str, *, patience: float = PATIENCE) -> Way | Held | Refused:
        """The way to `url` for one post, which must be made at once; waits so many seconds for its place."""
        try:
            target = parse_target(url, self._allow)
        except TargetRefused as e:
            return Refused(str(e))
        place = await self._hosts.place(_name(target), patience)
        return place if isinstance(place, Held) else Way(target, place)

    async def post(self, request: PostRequest, way: Way | Held | Refused | None = None) -> Result:
        """Posts once; without a `way` only if there is a place now. Raises nothing but what cancels it."""
        if way is None:
            way = await self.way(request.url, patience=0)
        if not isinstance(way, Way):
            return way
        place, answered = way.place, None
        try:
            result = await self._exchange(way.target, request)
            if not isinstance(result, Refused):
                answered = not isinstance(result, Retry) or result.answer is not None
            return result
        finally:
            place.leave(answered)

    async def _exchange(self, target: Target, request: PostRequest) -> Result:
        try:
            async with self._clock.timeout(self._timeout) as limit:
                tries = 0
                while True:
                    line, tries = _Line(), tries + 1
                    try:
                        return await self._say(target, request, line, limit)
                    except (httpcore.NetworkError, httpcore.RemoteProtocolError) as e:
                        if line.is_new or not had_hung_up(e) or tries == MOST_TRIES:
                            raise
                        # one that was kept, and closed by the other side meanwhile: that is no answer to this post
        except AddressRefused as e:
            return Refused(str(e))
        except (httpcore.LocalProtocolError, UnicodeEncodeError):
            return Refused("the request can't be said in HTTP")
        except Exception as e:
            return Retry(why(e, self._timeout))

    async def _say(self, target: Target, request: PostRequest, line: _Line, limit: asyncio.Timeout) -> Result:
        answer: Answer | None = None
        asked = b""
        try:
            async with self._stream(target, request, line) as response:
                answer = Answer(response.status)  # from here on nothing else counts
                limit.reschedule(asyncio.get_running_loop().time() + BODY_PATIENCE + 1)
                asked = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
                answer = await read_answer(response, request.secrets, self._clock)
        except Exception:
            if answer is None:
                raise
        return self._judged(answer, asked)

    def _judged(self, answer: Answer, asked: bytes) -> Result:
        match answer.status:
            case status if 200 <= status < 300:
                return Delivered(status)
            case 410:
                return Gone(answer)
            case 429 | 503:
                return Retry(f"answered {answer.status}", retry_after(asked, self._clock.time()), answer)
            case status if 300 <= status < 400:
                return Retry(f"answered {status}: redirects are not followed", None, answer)
            case status:
                return Retry(f"answered {status}", None, answer)

    def _stream(
        self, target: Target, request: PostRequest, line: _Line
    ) -> AbstractAsyncContextManager[httpcore.Response]:
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        named = {"Host": target.authority, **request.headers, "Content-Length": str(len(request.body))}
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in named.items()]
        patience = {"read": self._timeout, "write": self._timeout}
        extensions = {"timeout": patience, "on_connect": line.connects}
        said = httpcore.Request("POST", url, headers=headers, content=request.body, extensions=extensions)
        return self._pools[target.scheme].stream(said)

    def _connections(self, ssl_context: ssl.SSLContext | None) -> Connections:
        only_allowed_networks = ssl_context is None
        backend = CheckedBackend(self._resolver, self._allow, only_allowed_networks=only_allowed_networks)
        return Connections(backend, ssl_context, clock=self._clock)


class _Line:
    """The connection of one post."""

    def __init__(self) -> None:
        self.is_new = False

    def connects(self) -> None:
        """Called when it is made for this post."""
        self.is_new = True


def retry_after(value: bytes, now: float) -> float | None:
    """The seconds that a Retry-After asks for, from `now` if it names a date; None if it can't be read.

    Source: RFC 9110, section 10.2.3.
    """
    text = value.decode("ascii", "replace").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    return None


def _name(target: Target) -> str:
    """What stands for a host here: another port is another server."""
    return f"{target.host}:{target.port}"
