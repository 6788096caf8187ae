"""Limits per owner: requests per second, and open streams.

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
from functools import partial
from itertools import accumulate, chain
from math import ceil
from typing import NoReturn, TypeVar
from weakref import WeakValueDictionary

from a2a.server.context import ServerCallContext
from a2a.types import ListTasksResponse, Task
from a2a.utils.errors import A2AError
from google.protobuf.message import Message as Proto

from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import DaemonThreads
from ...errors import StoreUnavailable
from ...lifecycle.references import Scope
from ...lifecycle.refusals import Reason, Refusal
from ...operations.errors import LimitExceededError
from ...operations.limits import (
    ANSWERS,
    CALLS,
    LIMIT_TEXTS,
    REQUESTS,
    STREAMS,
    error_of,
    error_of_limit,
)
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.tasks.commands import acquire_request
from ..metrics import Metrics
from ..protocol_errors import BurstDelay, RefusalDelay

T = TypeVar("T")

MAX_REMEMBERED_OWNERS = 10_000
"""Maximum number of owners without tokens that a gateway remembers. For further owners, the gateway queries the
store."""

STREAM_WAIT = 10
"""Retry-After of a rejected stream or gRPC call, in seconds. The value is fixed, because the end of another stream or
call cannot be predicted."""

MAX_ANSWERS = 10
"""Maximum number of an owner's answers that a gateway process checks at the same time, including waiting answers."""

ANSWER_WAIT = 5
"""Retry-After of an answer that is refused because of `MAX_ANSWERS`, in seconds."""

CARDS_PER_SECOND = 100
"""Number of public cards per second that a gateway process sends at once. Further cards are delayed, because a request
for a card needs no credentials, and therefore has no owner."""

BYTES_PER_TOKEN = 1 << 15
VALUES_PER_TOKEN = 500
"""Number of bytes and of JSON values in a body or a response that take the gateway as much time as a small request."""

UNPAID_READS = 4
"""Maximum number of tasks that a gateway process reads at the same time for an owner's GetTask and SubscribeToTask
requests. The read of a large task ends when its response is charged to the rate limit."""


def tokens_of(size: int, values: int) -> int:
    """Return the number of tokens that a body or a response of `size` bytes and `values` JSON values costs, in addition
    to the request's token."""
    return size // BYTES_PER_TOKEN + values // VALUES_PER_TOKEN


class OwnerLimits:
    """Enforcement of the limits per owner in a deployment that serves `agents`.

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
        self._blocked_until: dict[str, float] = {}  # by account
        self._retry_at: dict[str, float] = {}  # by account
        self._in_debt_until: dict[str, float] = {}  # by account
        self._delay = RefusalDelay(clock)
        self.card_delay = BurstDelay(CARDS_PER_SECOND, clock)
        self._max_streams = settings.owner_max_streams
        self._streams: Counter[str] = Counter()  # by account
        self._grpc_calls: Counter[str] = Counter()  # by account
        self._answers: Counter[str] = Counter()  # by account
        self._answer_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by account
        # a single thread, because each thread takes CPU time from the event loop
        self._answer_thread = DaemonThreads(1, "a2a-answers")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by account
        self._reads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by account
        self._burst = settings.owner_request_burst or max(1, ceil(self._per_second or 0))
        for agent in agents:
            metrics.declare_limits(agent, LIMIT_TEXTS)

    async def count_request(self, agent: str, context: ServerCallContext) -> None:
        """Count a request against the caller's rate limit.

        The call takes one round trip to the store. No round trip is needed without a rate limit, or while this process
        knows that the caller has no token.

        Raises:
            LimitExceededError: The caller has no token left.
            StoreUnavailable: The store is unavailable.
        """
        await self._count(agent, scope_of(context))

    async def count_unparsed_request(self, agent: str, owner: str) -> None:
        """Count a request of `owner` ("" for an unknown caller) that failed before it reached an operation.

        Raises:
            LimitExceededError: The caller has no token left.
        """
        with suppress(StoreUnavailable):
            await self._count(agent, Scope(owner=owner))

    async def charge_body(self, agent: str, owner: str, cost: int, paid: int = 0) -> int:
        """Charge the rate limit of `owner` for a body before a request is built from the body.

        The body is refused unless one token remains for the operation itself. The charge is limited to the size of the
        bucket without this token.

        Args:
            agent: Agent that receives the request.
            owner: Owner of the request, or "" for an unauthenticated caller.
            cost: Number of tokens that the body costs.
            paid: Number of tokens that earlier calls have charged for the body.

        Returns:
            The number of tokens that this call and earlier calls have charged for the body.

        Raises:
            LimitExceededError: The owner has too few tokens.
        """
        charged = min(cost, self._burst - 1)
        if charged <= paid:
            return paid
        with suppress(StoreUnavailable):
            await self._count(agent, Scope(owner=owner), charged - paid, spare=1)
        return charged

    async def overdraw(self, scope: Scope, cost: int) -> None:
        """Charge the owner of `scope` `cost` tokens for work that is done, even if the owner has too few tokens.

        Until enough tokens are refilled, the owner's further requests are rejected.
        """
        if cost > 0 and self._per_second is not None:
            with suppress(StoreUnavailable):
                wait = await self._store.run(
                    acquire_request(
                        self._keys,
                        scope,
                        per_second=self._per_second,
                        burst=self._burst,
                        cost=cost,
                        spare=1,
                        overdraw=True,
                    )
                )
                for times in (self._blocked_until, self._in_debt_until):
                    _remember(times, scope.account, wait, self._clock.monotonic())

    async def response_turn(self, scope: Scope) -> asyncio.Lock:
        """Acquire and return the lock that serializes the large responses to the owner of `scope`."""
        turn = self._turns.setdefault(scope.account, asyncio.Lock())
        await turn.acquire()
        return turn

    async def read_permits(self, agent: str, scope: Scope) -> asyncio.Semaphore:
        """Acquire a permit from the semaphore that limits the reads for the owner of `scope`, and return the semaphore.

        Raises:
            LimitExceededError: Another response has used the owner's last token after the request was counted.
        """
        permits = self._reads.setdefault(scope.account, asyncio.Semaphore(UNPAID_READS))
        await permits.acquire()
        await self.require_no_debt(permits, agent, scope)
        return permits

    async def require_no_debt(self, lock: asyncio.Lock | asyncio.Semaphore, agent: str, scope: Scope) -> None:
        """Release `lock` and raise LimitExceededError if the owner of `scope` has overdrawn the rate limit.

        Call this method only before an operation, because a refused request must not have an effect.
        """
        wait = self._in_debt_until.get(scope.account, 0.0) - self._clock.monotonic()
        if wait > 0:
            lock.release()
            await self._refuse(agent, scope.account, wait)

    async def require_token(self, agent: str, owner: str) -> None:
        """Raise LimitExceededError if this process has rejected a request of `owner` and the time in its Retry-After
        has not passed yet. Unauthenticated callers (`owner` is "") always pass."""
        account = Scope(owner=owner).account
        wait = self._retry_at.get(account, 0.0) - self._clock.monotonic()
        if owner and wait > 0:
            await self._refuse(agent, account, wait)

    @property
    def counts_requests(self) -> bool:
        return self._per_second is not None

    async def _count(self, agent: str, scope: Scope, cost: int = 1, spare: int = 0) -> None:
        if self._per_second is None:
            return
        wait = self._blocked_until.get(scope.account, 0.0) - self._clock.monotonic()
        if wait <= 0:
            wait = await self._store.run(
                acquire_request(
                    self._keys, scope, per_second=self._per_second, burst=self._burst, cost=cost, spare=spare
                )
            )
            if cost == 1:  # after a higher cost, the owner may still have tokens for a cheaper request
                _remember(self._blocked_until, scope.account, wait, self._clock.monotonic())
        if wait > 0:
            await self._refuse(agent, scope.account, wait)

    async def _refuse(self, agent: str, account: str, wait: float) -> NoReturn:
        """Raise LimitExceededError. The error is delayed if the caller did not respect an earlier Retry-After."""
        now = self._clock.monotonic()
        if now >= self._retry_at.get(account, 0.0):
            _remember(self._retry_at, account, ceil(wait), now)
        else:
            await self._delay.wait()
        raise self._error(agent, REQUESTS, LIMIT_TEXTS[REQUESTS], ceil(wait))

    @contextmanager
    def stream(self, agent: str, context: ServerCallContext) -> Iterator[None]:
        """Count an open stream of the caller inside the ``with`` block.

        Raises:
            LimitExceededError: The caller has too many open streams in this process.
        """
        account = scope_of(context).account
        if self._max_streams is not None and self._streams[account] >= self._max_streams:
            raise self._error(agent, STREAMS, LIMIT_TEXTS[STREAMS].format(self._max_streams), STREAM_WAIT)
        with _counted(self._streams, account):
            yield

    @contextmanager
    def grpc_call(self, agent: str, owner: str, maximum: int) -> Iterator[None]:
        """Count an open gRPC call of `owner` inside the ``with`` block.

        Raises:
            LimitExceededError: The owner has `maximum` open gRPC calls to this process.
        """
        account = Scope(owner=owner).account
        if self._grpc_calls[account] >= maximum:
            raise self._error(agent, CALLS, LIMIT_TEXTS[CALLS].format(maximum), STREAM_WAIT)
        with _counted(self._grpc_calls, account):
            yield

    async def check_answer(self, agent: str, scope: Scope, check: Callable[[], T]) -> T:
        """Call `check` in the thread that checks answers, and return its result or raise its exception.

        The thread checks one answer of an owner at a time, so that an owner's answers do not delay other owners. If the
        client disconnects, a waiting check is dropped.

        Raises:
            LimitExceededError: Too many answers of the owner are being checked or wait.
        """
        account = scope.account
        if self._answers[account] >= MAX_ANSWERS:
            raise self._error(agent, ANSWERS, LIMIT_TEXTS[ANSWERS].format(MAX_ANSWERS), ANSWER_WAIT)
        turn = self._answer_turns.setdefault(account, asyncio.Lock())
        with _counted(self._answers, account):
            await turn.acquire()
            checking = asyncio.ensure_future(self._answer_thread.call(check))
            checking.add_done_callback(lambda _: turn.release())
            result: T = await asyncio.shield(checking)
            return result

    def close(self) -> None:
        """Let the thread that checks answers end."""
        self._answer_thread.close()

    def error_of(self, agent: str, refusal: Refusal) -> A2AError:
        """Return the error of a refusal for the client. A request that exceeds a limit is counted."""
        if refusal.reason is Reason.LIMITED:
            self.metrics.count_limit_error(agent, refusal.data["limit"])
        return error_of(refusal)

    def _error(self, agent: str, limit: str, text: str, seconds: int) -> LimitExceededError:
        self.metrics.count_limit_error(agent, limit)
        return error_of_limit(limit, text, seconds)


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


def scope_of(context: ServerCallContext) -> Scope:
    """Return the caller's tenant and owner as a scope without an agent."""
    return Scope(tenant=context.tenant, owner=context.user.user_name)


class BodyCharge:
    """Charge for the body of one request of `owner` to `agent`."""

    def __init__(self, limits: OwnerLimits, agent: str, owner: str) -> None:
        self._limits = limits
        self._agent = agent
        self._owner = owner
        self._cost = self._paid = 0

    async def pay(self, size: int, values: int = 0) -> None:
        """Charge the owner for `size` bytes and `values` JSON values, except for what earlier calls have charged.

        Raises:
            LimitExceededError: The owner has too few tokens.
        """
        cost = tokens_of(size, values)
        self._paid = await self._limits.charge_body(self._agent, self._owner, cost, self._paid)
        self._cost = cost

    async def settle(self) -> None:
        """Charge the tokens that exceed the owner's bucket, after the operation has used its own token."""
        cost, self._paid = self._cost - self._paid, self._cost
        await self._limits.overdraw(Scope(owner=self._owner), cost)


METER = "a2a_response_meter"
"""Key of a request's scope and its call context for the `ResponseMeter` of the request."""

LARGE_RESULT = 1 << 12
"""Size in bytes above which a result is written in pieces and counts against the rate limit of its owner."""


def sizes_of(message: Proto) -> Iterator[int]:
    """Yield the sizes of the components of `message` in bytes. Measuring a large message at once would delay the event
    loop."""
    match message:
        case ListTasksResponse():
            for task in message.tasks:
                yield from sizes_of(task)
        case Task():
            yield message.status.ByteSize() + message.metadata.ByteSize()
            for part in chain(message.history, message.artifacts):
                yield part.ByteSize()
        case _:
            yield message.ByteSize()


def is_large(message: Proto) -> bool:
    """Return True if `message` has more than `LARGE_RESULT` bytes, so that writing it at once would delay the event
    loop."""
    return any(size > LARGE_RESULT for size in accumulate(sizes_of(message)))


class ResponseMeter:
    """Meter of the bytes and JSON values in the large results of one request. The owner's rate limit is charged after
    the results are written.

    The large results of an owner are written one after another in each gateway process. Concurrent writes would delay
    other owners, and all results would be written before the first is charged.
    """

    def __init__(self) -> None:
        self._size = self._values = 0  # not charged yet
        self._has_begun = self._is_large = False
        self._overdraw: Callable[[int], Awaitable[None]] | None = None
        self._turn: asyncio.Lock | None = None
        self._read: asyncio.Semaphore | None = None

    async def acquire_read(self, limits: OwnerLimits, agent: str, scope: Scope) -> None:
        """Wait until fewer than `UNPAID_READS` of the owner's reads still have to be charged.

        Raises:
            LimitExceededError: Another result has used the owner's last token after the request was counted.
        """
        self._read = await limits.read_permits(agent, scope)

    async def take_turn(self, limits: OwnerLimits, agent: str, scope: Scope) -> None:
        """Before an operation, wait until no other large result of the owner is being written.

        Raises:
            LimitExceededError: Another result has used the owner's last token after the request was counted.
        """
        turn = await limits.response_turn(scope)
        await limits.require_no_debt(turn, agent, scope)
        self._turn = turn

    async def begin(self, limits: OwnerLimits, scope: Scope, size: int) -> None:
        """Count the bytes of the next result if the result is large. Before the request's first result, if it is large,
        wait until no other large result of the owner is being written.

        The result is delivered even if another result has used the owner's last token, because the operation may have
        had an effect. The owner's next request is refused instead.
        """
        is_first, self._has_begun = not self._has_begun, True
        self._is_large = size > LARGE_RESULT
        if not self._is_large:
            self._release_read()
            return
        if is_first and self._turn is None:  # a stream may wait for its client between two results
            self._turn = await limits.response_turn(scope)
        self._overdraw = partial(limits.overdraw, scope)
        self._size += size

    def add_values(self, values: int) -> None:
        """Count JSON values of the current result."""
        if self._is_large:
            self._values += values

    async def pay(self) -> None:
        """Charge the owner's rate limit for the written results, and let the owner's next large result be written."""
        size, values = self._size, self._values
        self._size, self._values = size % BYTES_PER_TOKEN, values % VALUES_PER_TOKEN
        try:
            if self._overdraw is not None:
                await self._overdraw(tokens_of(size, values))
        finally:
            turn, self._turn = self._turn, None
            if turn is not None:
                turn.release()
            self._release_read()

    def _release_read(self) -> None:
        permit, self._read = self._read, None
        if permit is not None:
            permit.release()


def meter_of(context: ServerCallContext) -> ResponseMeter:
    """Return the meter of a request. The endpoint must call `ResponseMeter.pay` after it has written a result."""
    meter: ResponseMeter = context.state.setdefault(METER, ResponseMeter())
    return meter
