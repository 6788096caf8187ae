"""Gate of a gateway process: the limits per owner that every request passes.

An authenticated user is one owner across all tenants and agents. The unauthenticated callers of a tenant are one owner,
because they see each other's tasks. IP addresses are not used, because they do not identify callers behind a proxy.

Source: A2A specification 13.4 (rate limits on all operations); RFC 6585, section 4 (429); RFC 9110, section 10.2.3
    (Retry-After).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain
from math import ceil
from threading import local
from time import sleep, thread_time
from typing import Any, NoReturn, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from a2a.types import ListTasksResponse, Task
from a2a.utils.errors import A2AError
from google.protobuf.message import Message as Proto

from ..clock import SYSTEM_CLOCK, Clock
from ..concurrency import DaemonThreads
from ..errors import StoreUnavailable
from ..lifecycle.references import Scope
from ..lifecycle.refusals import Reason, Refusal
from ..operations.errors import LimitExceededError
from ..operations.limits import ANSWERS, BODIES, CALLS, LIMIT_TEXTS, READS, REQUESTS, STREAMS, error_of, error_of_limit
from ..settings import Settings
from ..store import AsyncStore, Keys
from ..store.tasks.commands import acquire_request
from .metrics import Metrics
from .protocol_errors import BurstDelay, RefusalDelay

T = TypeVar("T")

SMALL = 1 << 12
"""Maximum size in bytes of a body or a result that is parsed or written at once. Anything larger is heavy work, because
it would delay the event loop."""

MAX_READS = 4
"""Maximum number of reads of tasks of an owner in a gateway process, until their results are written."""

MAX_WAITING = 1_000
"""Maximum number of an owner's reads that wait because of `MAX_READS`."""

MAX_ARRIVING_BYTES = 1 << 26
"""Maximum number of bytes of an owner's bodies that a gateway process has received and not parsed yet. A single body
may be larger. The first `SMALL` bytes of each body do not count, so that a small request is never refused because of
large requests."""

MAX_VALIDATIONS = 10
"""Maximum number of an owner's answers that a gateway process validates at the same time, including waiting answers."""

HEAVY_WAIT = 5
"""Retry-After of a read, a body or an answer that is refused because of others of its owner, in seconds."""

THREADS = 2
"""Number of threads for heavy work, so that the work of one owner does not wait for the work of another. More threads
would take more CPU time from the event loop."""

WORK_SHARE = 0.25
"""Share of the time in which an owner's heavy work may run if the deployment limits the rate of its owners."""

BYTES_PER_REQUEST = 100 * 1024
"""Bytes of large bodies and results of an owner for each request that the owner's rate allows."""

MAX_TRANSFER_PAUSE = 10.0
"""Maximum seconds for which a large body or result delays the next one of its owner."""

VALUES_PER_BREAK = 500
"""Number of JSON values after which heavy work takes a break."""

BREAK = 0.01
"""Seconds for which heavy work lets the event loop run alone. Without breaks, the event loop would wait for the GIL
after each system call."""

MIN_PAUSE = 0.002
"""Seconds below which pauses of an owner's work are added up, because the event loop's timers are less precise."""

MAX_REMEMBERED_OWNERS = 10_000
"""Maximum number of owners without tokens that a gateway remembers. For further owners, the gateway queries the
store."""

STREAM_WAIT = 10
"""Retry-After of a rejected stream or gRPC call, in seconds. The value is fixed, because the end of another stream or
call cannot be predicted."""

CARDS_PER_SECOND = 100
"""Number of public cards per second that a gateway process sends at once. Further cards are delayed, because a request
for a card needs no credentials, and therefore has no owner."""


class _Owner:
    """Reads and heavy work of one owner."""

    __slots__ = ("__weakref__", "pause", "reads", "transfers", "validations", "waiting", "work")

    def __init__(self) -> None:
        self.reads = asyncio.Semaphore(MAX_READS)
        self.waiting = self.validations = 0
        self.pause = 0.0
        self.work = asyncio.Lock()
        self.transfers = asyncio.Lock()

    # Bound methods keep this object, and with it the state of the owner, in memory.

    def release_read(self) -> None:
        self.reads.release()

    def release_work(self) -> None:
        self.work.release()

    def release_transfers(self) -> None:
        self.transfers.release()


class Gate:
    """Limits per owner of a deployment that serves `agents`.

    The rate is a token bucket in the store, from which each request takes one token. Reads of tasks are bounded and
    wait in order. Heavy work runs in threads, the work of an owner one piece after the other.

    Attributes:
        metrics: Metrics that count the refused requests.
        card_delay: Delay of public cards; see `CARDS_PER_SECOND`.
    """

    def __init__(
        self,
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        agents: Iterable[str],
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self._store = store
        self._keys = keys
        self._per_second = settings.owner_requests_per_second
        self._burst = settings.owner_request_burst or max(1, ceil(self._per_second or 0))
        self._blocked_until: dict[str, float] = {}  # by account
        self._retry_at: dict[str, float] = {}  # by account
        self._delay = RefusalDelay(clock)
        self.card_delay = BurstDelay(CARDS_PER_SECOND, clock)
        self._max_streams = settings.owner_max_streams
        self._streams: Counter[str] = Counter()  # by account
        self._grpc_calls: Counter[str] = Counter()  # by account
        self._arriving: Counter[str] = Counter()  # bytes, by owner
        self._owners: WeakValueDictionary[str, _Owner] = WeakValueDictionary()  # by account
        self._threads = DaemonThreads(THREADS, "a2a-heavy")
        for agent in agents:
            metrics.declare_limits(agent, LIMIT_TEXTS)

    async def count_request(self, agent: str, scope: Scope) -> None:
        """Take a token from the bucket of the owner of `scope`.

        The call takes one round trip to the store. No round trip is needed without a rate limit, or while this process
        knows that the bucket is empty.

        Raises:
            LimitExceededError: The bucket is empty. The error is delayed if the owner did not respect an earlier
                Retry-After.
            StoreUnavailable: The store is unavailable.
        """
        if self._per_second is None:
            return
        account = scope.account
        wait = self._blocked_seconds(account)
        if wait <= 0:
            wait = await self._store.run(
                acquire_request(self._keys, scope, per_second=self._per_second, burst=self._burst)
            )
            _remember(self._blocked_until, account, wait, self._clock.monotonic())
        if wait > 0:
            await self._refuse(agent, account, wait)

    async def count_unparsed_request(self, agent: str, owner: str) -> None:
        """Count a request of `owner` ("" for an unknown caller) that failed before it reached an operation.

        Raises:
            LimitExceededError: The owner's bucket is empty.
        """
        with suppress(StoreUnavailable):
            await self.count_request(agent, Scope(owner=owner))

    async def require_token(self, agent: str, owner: str) -> None:
        """Raise LimitExceededError if this process knows that the bucket of `owner` is empty. Unauthenticated callers
        (`owner` is "") always pass.

        The requests of an owner that ignores Retry-After are accepted one by one, as the bucket is filled, and not
        together whenever the time in Retry-After has passed.
        """
        account = Scope(owner=owner).account
        wait = self._blocked_seconds(account)
        if owner and wait > 0:
            await self._refuse(agent, account, wait)

    def _blocked_seconds(self, account: str) -> float:
        """Return the seconds until the bucket of `account` has a token, as far as this process knows. The bucket may
        have one if the result is 0 or less."""
        return self._blocked_until.get(account, 0.0) - self._clock.monotonic()

    async def _refuse(self, agent: str, account: str, wait: float) -> NoReturn:
        now = self._clock.monotonic()
        if now >= self._retry_at.get(account, 0.0):
            _remember(self._retry_at, account, ceil(wait), now)
        else:
            await self._delay.wait()
        raise self._error(agent, REQUESTS, ceil(wait))

    async def begin_read(self, agent: str, scope: Scope) -> Callable[[], None]:
        """Wait until the owner of `scope` may read tasks.

        Returns:
            The function that ends the read, which the caller must call when the result is written.

        Raises:
            LimitExceededError: Too many reads of the owner wait.
        """
        owner = self._owner(scope)
        if owner.waiting >= MAX_WAITING:
            raise self._error(agent, READS, HEAVY_WAIT, MAX_WAITING)
        owner.waiting += 1
        try:
            await owner.reads.acquire()
        finally:
            owner.waiting -= 1
        return owner.release_read

    @contextmanager
    def arriving_body(self, agent: str, owner: str) -> Iterator[Callable[[int], None]]:
        """Count a body of `owner` ("" for all unauthenticated callers) inside the ``with`` block.

        Yields:
            A function to call with the number of bytes received so far. The function raises LimitExceededError if the
            owner's bodies together exceed `MAX_ARRIVING_BYTES`.
        """
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            more = size - SMALL - counted
            if more <= 0:
                return
            if self._arriving[owner] > counted and self._arriving[owner] + more > MAX_ARRIVING_BYTES:
                raise self._error(agent, BODIES, HEAVY_WAIT, MAX_ARRIVING_BYTES)
            counted += more
            self._arriving[owner] += more

        try:
            yield count
        finally:
            self._arriving[owner] -= counted
            if not self._arriving[owner]:
                del self._arriving[owner]

    async def work(self, scope: Scope, function: Callable[..., T], *args: Any) -> T:
        """Call `function` in a thread, and return its result or raise its exception.

        The work of an owner is executed one piece after the other. With a rate limit, the next piece waits so long that
        the owner's work takes at most `WORK_SHARE` of the time of a thread. If the caller is cancelled while other work
        of the owner runs, `function` is not called.
        """
        owner, seconds = self._owner(scope), 0.0

        def timed() -> T:
            nonlocal seconds
            _work.values = 0
            began = thread_time()
            try:
                return function(*args)
            finally:
                seconds = thread_time() - began

        def release_later(_: object) -> None:
            owner.pause += 0.0 if self._per_second is None else seconds * (1 / WORK_SHARE - 1)
            if owner.pause < MIN_PAUSE:
                owner.release_work()
            else:
                asyncio.get_running_loop().call_later(owner.pause, owner.release_work)
                owner.pause = 0.0

        await owner.work.acquire()
        working = asyncio.ensure_future(self._threads.call(timed))
        working.add_done_callback(release_later)
        try:
            result: T = await asyncio.shield(working)
            return result
        finally:
            del working  # holds an exception, whose traceback holds this frame and the arguments

    async def validate(self, agent: str, scope: Scope, check: Callable[[], T]) -> T:
        """Call `check`, which validates an answer, as heavy work.

        Raises:
            LimitExceededError: Too many answers of the owner are validated or wait.
        """
        owner = self._owner(scope)
        if owner.validations >= MAX_VALIDATIONS:
            raise self._error(agent, ANSWERS, HEAVY_WAIT, MAX_VALIDATIONS)
        owner.validations += 1
        try:
            return await self.work(scope, check)
        finally:
            owner.validations -= 1

    async def pace(self, scope: Scope, size: int) -> None:
        """Wait until the owner of `scope` may send or receive `size` bytes. With a rate limit, the bodies and results
        of an owner that are larger than `SMALL` have `BYTES_PER_REQUEST` for each request that the rate allows."""
        if size > SMALL and self._per_second is not None:
            owner = self._owner(scope)
            await owner.transfers.acquire()
            seconds = min(MAX_TRANSFER_PAUSE, size / BYTES_PER_REQUEST / self._per_second)
            asyncio.get_running_loop().call_later(seconds, owner.release_transfers)

    async def pace_result(self, scope: Scope, result: Any) -> None:
        """Wait until the owner of `scope` may receive `result`, a message of A2A or a page of a stream. New events of a
        stream do not wait."""
        if self._per_second is None:
            return
        match result:
            case Proto():
                messages = [result]
            case list():
                messages = [event.event for event in result if event.is_stored]
            case _:
                return
        size = 0
        for component in chain.from_iterable(map(_sizes_of, messages)):
            size += component
            if component > SMALL:
                await asyncio.sleep(0)
        await self.pace(scope, size)

    def _owner(self, scope: Scope) -> _Owner:
        return self._owners.setdefault(scope.account, _Owner())

    @contextmanager
    def stream(self, agent: str, scope: Scope) -> Iterator[None]:
        """Count an open stream of the owner of `scope` inside the ``with`` block.

        Raises:
            LimitExceededError: The owner has too many open streams in this process.
        """
        account = scope.account
        if self._max_streams is not None and self._streams[account] >= self._max_streams:
            raise self._error(agent, STREAMS, STREAM_WAIT, self._max_streams)
        with _counted(self._streams, account), self.metrics.open_stream(agent):
            yield

    @contextmanager
    def grpc_call(self, agent: str, owner: str, maximum: int) -> Iterator[None]:
        """Count an open gRPC call of `owner` inside the ``with`` block.

        Raises:
            LimitExceededError: The owner has `maximum` open gRPC calls to this process.
        """
        account = Scope(owner=owner).account
        if self._grpc_calls[account] >= maximum:
            raise self._error(agent, CALLS, STREAM_WAIT, maximum)
        with _counted(self._grpc_calls, account):
            yield

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    def error_of(self, agent: str, refusal: Refusal) -> A2AError:
        """Return the error of a refusal for the client. A request that exceeds a limit is counted."""
        if refusal.reason is Reason.LIMITED:
            self.metrics.count_limit_error(agent, refusal.data["limit"])
        return error_of(refusal)

    def _error(self, agent: str, limit: str, seconds: int, maximum: int = 0) -> LimitExceededError:
        self.metrics.count_limit_error(agent, limit)
        return error_of_limit(limit, LIMIT_TEXTS[limit].format(maximum), seconds)


HeavyWork: TypeAlias = Callable[..., Awaitable[Any]]
"""Function that calls a function with arguments as heavy work of an owner, and returns its result; see `Gate.work`."""


async def process(work: HeavyWork, is_heavy: bool, function: Callable[..., T], *args: Any) -> T:
    """Return the result of `function`, called as heavy work if `is_heavy` is True, or else at once."""
    return await work(function, *args) if is_heavy else function(*args)


class _Work(local):
    """Heavy work in the current thread.

    Attributes:
        values: Number of JSON values since the last break, or None in a thread without heavy work.
    """

    values: int | None = None


_work = _Work()


def count_value() -> None:
    """Count a JSON value that the current thread parses or writes. Heavy work takes a break after each
    `VALUES_PER_BREAK` values; see `BREAK`."""
    if _work.values is not None:
        _work.values += 1
        if _work.values >= VALUES_PER_BREAK:
            _work.values = 0
            sleep(BREAK)


def is_large(*messages: Proto) -> bool:
    """Return True if `messages` have more than `SMALL` bytes, so that writing them at once would delay the event
    loop."""
    return any(size > SMALL for size in accumulate(chain.from_iterable(map(_sizes_of, messages))))


def _sizes_of(message: Proto) -> Iterator[int]:
    """Yield the sizes of the components of `message` in bytes. Measuring a large message at once would delay the event
    loop."""
    match message:
        case ListTasksResponse():
            for task in message.tasks:
                yield from _sizes_of(task)
        case Task():
            yield message.status.ByteSize() + message.metadata.ByteSize()
            for part in chain(message.history, message.artifacts):
                yield part.ByteSize()
        case _:
            yield message.ByteSize()


@contextmanager
def _counted(counter: Counter[str], account: str) -> Iterator[None]:
    """Count one more in `counter` inside the ``with`` block."""
    counter[account] += 1
    try:
        yield
    finally:
        counter[account] -= 1
        if not counter[account]:
            del counter[account]


def _remember(times: dict[str, float], account: str, wait: float, now: float) -> None:
    """Store the time until which an account has to wait. If the table is full, drop expired times."""
    times.pop(account, None)
    if len(times) >= MAX_REMEMBERED_OWNERS:
        for other in [other for other, until in times.items() if until <= now]:
            del times[other]
    if wait > 0 and len(times) < MAX_REMEMBERED_OWNERS:
        times[account] = now + wait
