"""Concurrent writers of a task. The task ends with one terminal state, a log without gaps, and a snapshot that equals
the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
from a2a.types import Task, TaskStatusUpdateEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle import TERMINAL, is_terminal
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim, RunLost, Settled, Written, append, claim_run, settle_run
from a2a_celery.store.tasks.commands import continue_task, request_cancel
from a2a_celery.store.tasks.replies import CanceledNow
from tests.support.store.leaks import leaks
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, chunk, request, run_concurrently, status

EVENTS = [
    chunk("one "),
    chunk("two ", "b"),
    chunk("anew", append=False),
    chunk("with metadata ", colour="green"),
    status(WORKING),
    status(WORKING, "busy"),
    status(WORKING, "busy", step=1),
    status(INPUT_REQUIRED, "which?"),
    status(AUTH_REQUIRED, "who?"),
]
LAST = [status(COMPLETED, "bye"), status(FAILED), status(REJECTED, "no"), status(CANCELED)]


@dataclass
class Player:
    """Client that performs random operations on a task, some of which are not allowed."""

    seeds: Seeds
    task_id: str
    chance: random.Random
    claim: Claim | None = None
    event_count: int = 0

    async def act(self, move: str) -> None:
        """Perform an operation. Use a wrong token if the player has no claim."""
        store, keys = self.seeds.store, self.seeds.keys
        ref, token = (self.claim.ref, self.claim.token) if self.claim else (RunRef(self.task_id, 1), "a false token")
        match move:
            case "claim":
                await self._claim()
            case "append":
                events = self.chance.choices(EVENTS, k=self.chance.randint(1, 4))
                answer = await store.run(append(keys, ref, token=token, written_count=self.event_count, events=events))
                self._count(answer, len(events))
            case "end":
                events = [*self.chance.choices(EVENTS, k=1), self.chance.choice(LAST)]
                answer = await store.run(append(keys, ref, token=token, written_count=self.event_count, events=events))
                self._count(answer, len(events))
            case "settle":
                events = [self.chance.choice([*LAST, *EVENTS])]
                answer = await store.run(
                    settle_run(keys, ref, token=token, written_count=self.event_count, events=events)
                )
                self._count(answer, len(events))
            case "continue":
                message_request = request("more", self.task_id, CONTEXT)
                await store.run(
                    continue_task(keys, ANN, self.task_id, message_request, "", caller=b"{}", nonce=uuid4().hex)
                )
            case "cancel":
                await store.run(request_cancel(keys, ANN, self.task_id, CONTEXT))
            case "look":
                await self.seeds.require_consistent(self.task_id)

    async def _claim(self) -> None:
        run = int(await self.seeds.store.redis.hget(self.seeds.keys.task(self.task_id).record, "run"))
        call = claim_run(
            self.seeds.keys,
            RunRef(self.task_id, run),
            token=uuid4().hex,
            runner="r",
            lease_us=LEASE_US,
            working=self.chance.random() < 0.5,
        )
        answer = await self.seeds.store.run(call)
        if isinstance(answer, Claim):
            self.claim, self.event_count = answer, 0

    def _count(self, answer: object, events: int) -> None:
        if isinstance(answer, Written):
            self.event_count += events
        elif isinstance(answer, Settled | RunLost):
            self.claim = None


@asynccontextmanager
async def stores(server: EmbeddedRedis, count: int) -> AsyncIterator[list[AsyncStore]]:
    """Connect several clients to an empty Redis server."""
    clients = [AsyncStore(server.store_url) for _ in range(count)]
    await clients[0].redis.flushall()
    try:
        yield clients
    finally:
        for store in clients:
            await store.aclose()


MOVES = st.lists(
    st.lists(
        st.sampled_from(
            ["claim", "claim", "append", "append", "append", "settle", "continue", "cancel", "end", "look"]
        ),
        min_size=1,
        max_size=12,
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(moves=MOVES, seed=st.integers(0, 2**16))
def test_any_interleaving_leaves_a_log_that_is_the_task(
    redis_server: EmbeddedRedis, moves: list[list[str]], seed: int
) -> None:
    async def play() -> None:
        keys = Keys("test")
        async with stores(redis_server, len(moves)) as clients:
            task_id = await Seeds(clients[0], keys).create_task()
            players = [
                Player(Seeds(client, keys), task_id, random.Random(seed + n)) for n, client in enumerate(clients)
            ]

            async def all_of(player: Player, player_moves: list[str]) -> None:
                for move in player_moves:
                    await player.act(move)

            await asyncio.gather(
                *(all_of(player, player_moves) for player, player_moves in zip(players, moves, strict=True))
            )

            seeds = Seeds(clients[0], keys)
            await seeds.require_consistent(task_id)
            states = await seeds.states(task_id)
            ends = [number for number, state in enumerate(states) if is_terminal(state)]
            assert ends in ([], [len(states) - 1])
            log = await seeds.log(task_id)
            if ends:
                last = log[-1].event
                assert isinstance(last, Task | TaskStatusUpdateEvent)
                assert is_terminal(last.status.state)
            assert await leaks(clients[0], keys) == []

    asyncio.run(play())


@pytest.mark.parametrize("round_", range(5))
async def test_of_many_ends_at_once_exactly_one_is_written(
    redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, round_: int
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    ends = [status(state, str(n)) for n in range(6) for state in sorted(TERMINAL)]

    async with connect_to_server(redis_server) as clients:
        answers = await run_concurrently(
            *(
                clients[n % len(clients)].run(
                    (append, settle_run)[n % 2](keys, claim.ref, token=claim.token, written_count=0, events=[end])
                )
                for n, end in enumerate(ends)
            )
        )

    log = await seeds.log(task_id)
    states = await seeds.states(task_id)
    writes = [answer for answer in answers if isinstance(answer, Written)]
    settlements = [answer for answer in answers if isinstance(answer, Settled)]
    assert len(writes) + len(settlements) == len(ends)
    assert [is_terminal(state) for state in states] == [False, False, True]
    assert len(log) == 3
    assert all(answer == Written(3, states[-1]) for answer in writes)
    assert all((answer.version, answer.state) == (3, states[-1]) for answer in settlements)
    await seeds.require_consistent(task_id)


@pytest.mark.parametrize("round_", range(5))
async def test_a_cancel_a_claim_and_a_message_at_once_agree(
    redis_server: EmbeddedRedis, keys: Keys, seeds: Seeds, round_: int
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    message_request = request("more", task_id, CONTEXT)

    async with connect_to_server(redis_server) as clients:
        cancellation, continuation, claim = await run_concurrently(
            clients[0].run(request_cancel(keys, ANN, task_id, CONTEXT)),
            clients[1].run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n")),
            clients[2].run(claim_run(keys, RunRef(task_id, 2), token="t", runner="r", lease_us=LEASE_US, working=True)),
        )

    states = await seeds.states(task_id)
    assert (states[-1] == CANCELED) == isinstance(cancellation, CanceledNow)
    assert (len(states) > 4 or states[-1] != CANCELED) == begins(continuation)
    assert not (isinstance(claim, Claim) and isinstance(cancellation, CanceledNow) and cancellation.run == 2)
    await seeds.require_consistent(task_id)


@asynccontextmanager
async def connect_to_server(server: EmbeddedRedis) -> AsyncIterator[list[AsyncStore]]:
    """Connect four clients to the Redis server, and keep the server's data."""
    clients = [AsyncStore(server.store_url) for _ in range(4)]
    try:
        yield clients
    finally:
        for store in clients:
            await store.aclose()
