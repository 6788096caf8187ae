"""Readiness by the replies of workers, and hanging probes, which a gateway reports in time without starting others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Event
from typing import Any

import pytest
from celery import Celery

from a2a_celery.agents import Agent
from a2a_celery.cli.doctor.broker_server import broker_server
from a2a_celery.gateway.health import Health, SingleCall, broker_line, settings_line
from a2a_celery.settings.loading import read_settings
from a2a_celery.store import Keys
from tests.support.waiting import eventually_async


@pytest.fixture
def release() -> Iterator[Event]:
    """Event that lets the hanging call return. It is set after the test, so that no thread remains."""
    release = Event()
    yield release
    release.set()


async def test_a_call_that_comes_back_gives_its_result_and_its_error() -> None:
    assert await SingleCall(lambda: 7).result(5) == 7
    with pytest.raises(ZeroDivisionError):
        await SingleCall(lambda: 1 / 0).result(5)


async def test_a_call_that_hangs_is_given_up_and_not_made_again(release: Event) -> None:
    calls = []
    call = SingleCall(lambda: (calls.append(1), release.wait(30)))

    for _ in range(3):
        with pytest.raises(TimeoutError):
            await call.result(0.05)

    assert len(calls) == 1


async def test_when_it_comes_back_it_is_made_anew(release: Event) -> None:
    calls = []
    call = SingleCall(lambda: (calls.append(1), release.wait(30))[1])
    with pytest.raises(TimeoutError):
        await call.result(0.05)

    release.set()

    async def result() -> Any:
        with suppress(TimeoutError):  # the first call has not ended yet
            return await call.result(5)

    assert await eventually_async(result, what="the call is repeated") is True
    assert len(calls) == 2


class IdleStore:
    """Store that is available and contains no announcements."""

    async def ping(self) -> None:
        pass

    async def run(self, operation: Any) -> list[str]:
        return []


DRAINED, READY, FOREIGN = {"w1": []}, {"w2": [{"name": "celery"}]}, {"w3": [{"name": "mails"}]}


def health_with(
    monkeypatch: pytest.MonkeyPatch, *queries: list[dict[str, Any]] | Exception, agent: Agent | None = None
) -> tuple[Health, list[dict[str, Any]]]:
    """Return the checks of a gateway whose queries to workers have these replies or errors, and the read replies."""
    app, read, remaining = Celery(broker="memory://"), [], list(queries)

    def broadcast(command: str, *, reply: bool, timeout: float, callback: Any) -> None:
        replies = remaining.pop(0)
        if isinstance(replies, Exception):
            raise replies
        for answer in replies:
            read.append(answer)
            callback(answer)

    monkeypatch.setattr(app.control, "broadcast", broadcast)
    agents = {"greeter": agent or Agent("greeter", "card", "function", None)}
    return Health(app, IdleStore(), Keys("a2a"), agents), read  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [DRAINED, FOREIGN], ids=["drained", "foreign"])
async def test_a_ready_worker_counts_after_the_reply_of_another(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, Any]
) -> None:
    health, read = health_with(monkeypatch, [first, READY, FOREIGN])

    assert (await health.check())["workers"] == "ok"
    assert read == [first, READY]


@pytest.mark.parametrize(
    ("replies", "text"),
    [
        ([], "no worker answered within 1 s: start one with celery -A … worker"),
        ([DRAINED], "no worker consumes a queue"),
        ([DRAINED, FOREIGN], "no worker consumes the queue of an agent"),
    ],
)
async def test_workers_without_an_agents_queue_do_not_count(
    monkeypatch: pytest.MonkeyPatch, replies: list[dict[str, Any]], text: str
) -> None:
    health, _ = health_with(monkeypatch, replies)

    assert (await health.check())["workers"] == text


@pytest.mark.parametrize(
    "agent",
    [
        Agent("greeter", "card", "function", None, options={"exchange": "any"}),
        Agent("greeter", "card", "function", None, route=lambda request, caller: {}),
    ],
    ids=["exchange", "route"],
)
async def test_any_queue_counts_if_runs_may_be_in_any_queue(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    health, _ = health_with(monkeypatch, [FOREIGN], agent=agent)

    assert (await health.check())["workers"] == "ok"


async def test_a_query_on_a_broken_connection_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    health, _ = health_with(monkeypatch, ConnectionError("stale"), [READY])
    failing_health, _ = health_with(monkeypatch, ConnectionError("stale"), ConnectionError("stale"))

    assert (await health.check())["workers"] == "ok"
    assert (await failing_health.check())["workers"] == "unreachable (ConnectionError)"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6390/0", "redis://localhost:6390/0"),
        ("redis://:s3cret@localhost:6390/0", "redis://:**@localhost:6390/0"),
        ("amqp://me:s3cret@broker//", "amqp://me:**@broker:5672//"),
    ],
)
def test_the_broker_is_shown_with_a_mask_for_a_password_that_is_set(url: str, shown: str) -> None:
    assert broker_line(Celery(broker=url)).startswith(f"{shown} (")


def test_an_empty_variable_is_shown_as_a_setting_that_is_not_set() -> None:
    environ = {"A2A_STORE_URL": "redis://127.0.0.1/0", "A2A_PUBLIC_URL": "", "A2A_INPUT_TIMEOUT": "none"}

    line = settings_line(read_settings({}, environ))

    assert line == (
        "public_url not set (A2A_PUBLIC_URL in the environment is empty), "
        "input_timeout = None (A2A_INPUT_TIMEOUT in the environment)"
    )


def test_the_error_of_the_broker_has_no_full_stop() -> None:
    assert str(broker_server(Celery(broker="redis://127.0.0.1:1/0"))).endswith("Connection refused")
