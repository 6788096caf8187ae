"""Checks of structured answers in a thread, with a bounded queue for each owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from a2a_celery.gateway.metrics import Metrics
from a2a_celery.gateway.operations.limits import ANSWER_WAIT, MAX_ANSWERS, OwnerLimits
from a2a_celery.lifecycle.references import Scope
from a2a_celery.operations.errors import LimitExceededError
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.waiting import eventually_async

ANN, BOB = Scope(owner="ann"), Scope(owner="bob")


class Checks:
    """Checks whose ends the test controls.

    Attributes:
        begun: Names of the checks that have begun, in order.
        threads: Names of the threads in which the checks have run.
    """

    def __init__(self, limits: OwnerLimits) -> None:
        self.limits = limits
        self.begun: list[str] = []
        self.threads: set[str] = set()
        self._permits = threading.Semaphore(0)

    def start(self, scope: Scope, name: str) -> asyncio.Task[str]:
        """Start a check of an answer of the owner of `scope`."""

        def check() -> str:
            self.begun.append(name)
            self.threads.add(threading.current_thread().name)
            self._permits.acquire()
            return name

        return asyncio.create_task(self.limits.check_answer("echo", scope, check))

    def end(self, count: int = 1) -> None:
        """Let the next `count` checks end."""
        self._permits.release(count)

    async def until_begun(self, *names: str) -> None:
        """Wait until exactly the checks `names` have begun, in this order."""

        async def have_begun() -> bool:
            return self.begun == list(names)

        await eventually_async(have_begun, what=f"{names} have begun")


@pytest.fixture
async def checks(store: AsyncStore, keys: Keys) -> AsyncIterator[Checks]:
    checks = Checks(OwnerLimits(Settings(), store, keys, ["echo"], Metrics(store, keys, {})))
    yield checks
    checks.end(100)
    checks.limits.close()


async def test_an_owner_with_many_answers_does_not_delay_another_owner(checks: Checks) -> None:
    first = checks.start(ANN, "first")
    await checks.until_begun("first")
    others = [checks.start(ANN, f"other {number}") for number in range(MAX_ANSWERS - 1)]
    await asyncio.sleep(0)
    of_bob = checks.start(BOB, "of bob")
    await asyncio.sleep(0)

    with pytest.raises(LimitExceededError) as exc_info:
        await checks.start(ANN, "one too many")
    checks.end(2)

    assert (await first, await of_bob) == ("first", "of bob")
    assert exc_info.value.data == {"limit": "answers", "retryAfter": str(ANSWER_WAIT)}
    checks.end(len(others))
    await asyncio.gather(*others)
    assert checks.begun[:2] == ["first", "of bob"]
    assert checks.threads == {"a2a-answers-0"}, "the default executor also looks up names"
    checks.end()
    assert await checks.start(ANN, "later") == "later"


async def test_the_answer_of_a_client_that_has_disconnected_is_not_checked(checks: Checks) -> None:
    running, waiting = checks.start(ANN, "running"), checks.start(ANN, "waiting")
    await checks.until_begun("running")
    running.cancel()
    waiting.cancel()
    await asyncio.wait([running, waiting])

    last = checks.start(ANN, "last")
    await asyncio.sleep(0)
    of_bob = checks.start(BOB, "of bob")
    checks.end(3)
    await asyncio.gather(last, of_bob)

    assert checks.begun == ["running", "of bob", "last"], "the running check still counts"
