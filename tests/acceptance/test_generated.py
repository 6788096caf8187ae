"""Thousands of generated requests. Each response conforms to the protocol and reveals no internals. Afterwards, the
gateway has the same process, has leaked no connections, asyncio tasks or memory, and has logged no unexpected error."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import monotonic

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import ServedFleet, message_json, rest, serve_fleet
from tests.support.hostile.requests import KnownIds, Request
from tests.support.hostile.run import HostileRun
from tests.support.store.leaks import leaks
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.nightly

REQUESTS = int(os.environ.get("HOSTILE_REQUESTS", "0"))
"""Number of requests, or 0 for as many as possible within `SECONDS`, but at most `AT_MOST`."""

SECONDS = 25.0
AT_MOST = 3000
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
LIST = 20
WARM_UP = 0.3
"""Fraction of the requests after which memory is first measured. By then, lazily loaded modules and caches are in
memory."""

MAX_GROWTH = 48 * 1024 * 1024
"""Maximum growth of a gateway's memory in bytes."""

SECRET = "what-another-owner-said-4f1c"
HOOK_SECRET = "what-another-owner-s-webhook-is-told-77ab"


@dataclass
class State:
    """State of a gateway between requests."""

    pid: int
    connections: int
    tasks: int
    memory: int


def state_of(served_fleet: ServedFleet) -> State:
    """Return the current state of the gateway."""
    process = psutil.Process(served_fleet.gateway.pid)
    size_before = len(served_fleet.gateway.output())
    served_fleet.gateway.signal(signal.SIGUSR1)
    output = eventually(
        lambda: re.search(r"asyncio tasks: (\d+)", served_fleet.gateway.output()[size_before:]), what="it counts"
    )
    return State(process.pid, len(process.net_connections("all")), int(output[1]), process.memory_info().rss)


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    env = {"app": "tests.support.hostile.agents", "A2A_MAX_REQUEST_BYTES": "200000"}
    env |= {"A2A_SECRET_KEY": "x" * 32, "A2A_ALLOW_NETWORKS": "127.0.0.0/8", "A2A_UI": "on", "A2A_OPERATORS": "*"}
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, **env) as served_fleet:
        yield served_fleet


def tasks_of(served_fleet: ServedFleet) -> list[str]:
    """Create tasks and return the ids that requests may contain: those of a COMPLETED task, of waiting tasks, and of a
    task in another tenant."""
    task_ids = []
    for agent, path in (("echo", "/message:send"), ("ask", "/message:send"), ("ask", "/elsewhere/message:send")):
        words = SECRET if "elsewhere" in path else "hello"
        task_ids.append(rest(served_fleet.gateway, "POST", path, message_json(words), agent=agent).json()["task"]["id"])
    hook = {"id": "c", "url": "http://127.0.0.1:9/", "token": HOOK_SECRET}
    for agent in ("approval", "asks-number"):
        message = message_json("wait") | {"configuration": {"returnImmediately": True}}
        task_ids.append(rest(served_fleet.gateway, "POST", "/message:send", message, agent=agent).json()["task"]["id"])
    response = rest(
        served_fleet.gateway, "POST", f"/elsewhere/tasks/{task_ids[2]}/pushNotificationConfigs", hook, agent="ask"
    )
    assert response.status_code == 200, response.text
    return task_ids


def hypothesis_of(known_ids: KnownIds, turn: int) -> Callable[[Callable[[list[Request]], None]], Callable[[], None]]:
    """Return a decorator for a function that checks lists of requests. `turn` seeds the requests."""
    hypothesis_settings = settings(
        max_examples=20,
        deadline=None,
        phases=[Phase.generate],  # failing requests are reported without shrinking
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    lists = st.lists(known_ids.requests(), min_size=LIST, max_size=LIST)
    return lambda send: seed(turn)(hypothesis_settings(given(lists)(send)))


@pytest.mark.timeout(max(200, REQUESTS // 10))
def test_each_response_conforms_to_the_protocol_and_no_request_changes_the_gateway(served_fleet: ServedFleet) -> None:
    known_ids = KnownIds(tasks_of(served_fleet))
    run = HostileRun(served_fleet.gateway.url, served_fleet.gateway.grpc, (SECRET, HOOK_SECRET))
    # opens connections to the broker that stay open
    assert httpx.get(f"{served_fleet.url}/operator/v1/workers", timeout=LIMIT).status_code == 200
    states = [state_of(served_fleet)]
    until = monotonic() + SECONDS
    request_count = REQUESTS or AT_MOST

    with asyncio.Runner() as runner:

        def over() -> bool:
            return run.request_count >= request_count or (not REQUESTS and monotonic() > until)

        def send(requests: list[Request]) -> None:
            if not over():
                runner.run(run.send(requests))

        for turn in count(SEED * 1_000_000):  # a single long turn would repeat requests
            if over():
                break
            hypothesis_of(known_ids, turn)(send)()
            if len(states) == 1 and (
                run.request_count > request_count * WARM_UP or monotonic() > until - SECONDS * (1 - WARM_UP)
            ):
                states.append(state_of(served_fleet))
        runner.run(run.aclose())

    print(f"\nHOSTILE_SEED={SEED}, {run.table()}")
    assert not run.wrong, "\n".join([f"{len(run.wrong)} of {run.request_count} are wrong", *run.wrong[:20]])
    first, warm = states if len(states) == 2 else states * 2

    def is_unchanged() -> bool:
        current_state = state_of(served_fleet)
        return (
            current_state.pid,
            current_state.connections <= first.connections + 4,
            current_state.tasks <= first.tasks + 2,
        ) == (
            first.pid,
            True,
            True,
        )

    eventually(is_unchanged, every=0.5, what=f"the gateway is as before: {states}, {state_of(served_fleet)}")
    growth = state_of(served_fleet).memory - warm.memory
    print(f"{first} → {state_of(served_fleet)}, {growth / 2**20:.1f} MiB since the warm-up")
    assert growth < MAX_GROWTH
    answer = rest(served_fleet.gateway, "POST", "/message:send", message_json("still there?")).json()
    assert answer["task"]["artifacts"][0]["parts"] == [{"text": "still there?"}]
    error_entries = errors(served_fleet.gateway.output())
    assert not error_entries, "\n".join(error_entries)


def errors(log: str) -> list[str]:
    """Return the log entries of level ERROR or above, each with its traceback.

    Entries of uvicorn about garbage after a request are left out. uvicorn responds to the garbage, closes the
    connection, and then logs that the connection is closed.
    """
    entries = re.split(r"^(?=\d{4}-\d\d-\d\d \d\d:)", log, flags=re.MULTILINE)
    error_entries = [
        entry for entry in entries if re.match(r"\S+ \S+ (ERROR|CRITICAL) ", entry) or "\n  Traceback" in entry
    ]
    closed_connection = (
        "h11._util.LocalProtocolError: can't handle event type Response when role=SERVER and state=MUST_CLOSE"
    )
    return [entry for entry in error_entries if closed_connection not in entry][:10]


async def test_what_is_left_in_the_store_is_explained(served_fleet: ServedFleet) -> None:
    store = AsyncStore(served_fleet.fleet.redis.store_url)
    try:
        assert not (await leaks(store, Keys()))[:20]
    finally:
        await store.aclose()
