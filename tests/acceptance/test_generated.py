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
from tests.support.clients import Served, message_json, rest, serving
from tests.support.hostile_requests import Known, Request
from tests.support.hostile_run import HostileRun
from tests.support.leaks import leaks
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


def state_of(served: Served) -> State:
    """Return the current state of the gateway."""
    process = psutil.Process(served.gateway.pid)
    before = len(served.gateway.output())
    served.gateway.signal(signal.SIGUSR1)
    output = eventually(lambda: re.search(r"asyncio tasks: (\d+)", served.gateway.output()[before:]), what="it counts")
    return State(process.pid, len(process.net_connections("all")), int(output[1]), process.memory_info().rss)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    env = {"app": "tests.support.hostile_agents", "A2A_MAX_REQUEST_BYTES": "200000"}
    env |= {"A2A_SECRET_KEY": "x" * 32, "A2A_ALLOW_NETWORKS": "127.0.0.0/8", "A2A_UI": "on", "A2A_OPERATORS": "*"}
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, **env) as served:
        yield served


def tasks_of(served: Served) -> list[str]:
    """Create tasks and return the ids that requests may contain: those of a COMPLETED task, of waiting tasks, and of a
    task in another tenant."""
    found = []
    for agent, path in (("echo", "/message:send"), ("ask", "/message:send"), ("ask", "/elsewhere/message:send")):
        words = SECRET if "elsewhere" in path else "hello"
        found.append(rest(served.gateway, "POST", path, message_json(words), agent=agent).json()["task"]["id"])
    hook = {"id": "c", "url": "http://127.0.0.1:9/", "token": HOOK_SECRET}
    for agent in ("approval", "asks-number"):
        message = message_json("wait") | {"configuration": {"returnImmediately": True}}
        found.append(rest(served.gateway, "POST", "/message:send", message, agent=agent).json()["task"]["id"])
    made = rest(served.gateway, "POST", f"/elsewhere/tasks/{found[2]}/pushNotificationConfigs", hook, agent="ask")
    assert made.status_code == 200, made.text
    return found


def hypothesis_of(known: Known, turn: int) -> Callable[[Callable[[list[Request]], None]], Callable[[], None]]:
    """Return a decorator for a function that checks lists of requests. `turn` seeds the requests."""
    how = settings(
        max_examples=20,
        deadline=None,
        phases=[Phase.generate],  # failing requests are reported without shrinking
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    lists = st.lists(known.requests(), min_size=LIST, max_size=LIST)
    return lambda send: seed(turn)(how(given(lists)(send)))


@pytest.mark.timeout(max(200, REQUESTS // 10))
def test_each_response_conforms_to_the_protocol_and_no_request_changes_the_gateway(served: Served) -> None:
    known = Known(tasks_of(served))
    run = HostileRun(served.gateway.url, served.gateway.grpc, (SECRET, HOOK_SECRET))
    # opens connections to the broker that stay open
    assert httpx.get(f"{served.url}/operator/v1/workers", timeout=LIMIT).status_code == 200
    states = [state_of(served)]
    until = monotonic() + SECONDS
    wanted = REQUESTS or AT_MOST

    with asyncio.Runner() as runner:

        def over() -> bool:
            return run.sent >= wanted or (not REQUESTS and monotonic() > until)

        def send(requests: list[Request]) -> None:
            if not over():
                runner.run(run.send(requests))

        for turn in count(SEED * 1_000_000):  # a single long turn would repeat requests
            if over():
                break
            hypothesis_of(known, turn)(send)()
            if len(states) == 1 and (run.sent > wanted * WARM_UP or monotonic() > until - SECONDS * (1 - WARM_UP)):
                states.append(state_of(served))
        runner.run(run.aclose())

    print(f"\nHOSTILE_SEED={SEED}, {run.table()}")
    assert not run.wrong, "\n".join([f"{len(run.wrong)} of {run.sent} are wrong", *run.wrong[:20]])
    first, warm = states if len(states) == 2 else states * 2

    def as_before() -> bool:
        now = state_of(served)
        return (now.pid, now.connections <= first.connections + 4, now.tasks <= first.tasks + 2) == (
            first.pid,
            True,
            True,
        )

    eventually(as_before, every=0.5, what=f"the gateway is as before: {states}, {state_of(served)}")
    growth = state_of(served).memory - warm.memory
    print(f"{first} → {state_of(served)}, {growth / 2**20:.1f} MiB since the warm-up")
    assert growth < MAX_GROWTH
    answer = rest(served.gateway, "POST", "/message:send", message_json("still there?")).json()
    assert answer["task"]["artifacts"][0]["parts"] == [{"text": "still there?"}]
    found = errors(served.gateway.output())
    assert not found, "\n".join(found)


def errors(log: str) -> list[str]:
    """Return the log entries of level ERROR or above, each with its traceback.

    Entries of uvicorn about garbage after a request are left out. uvicorn responds to the garbage, closes the
    connection, and then logs that the connection is closed.
    """
    entries = re.split(r"^(?=\d{4}-\d\d-\d\d \d\d:)", log, flags=re.MULTILINE)
    found = [entry for entry in entries if re.match(r"\S+ \S+ (ERROR|CRITICAL) ", entry) or "\n  Traceback" in entry]
    closed = "h11._util.LocalProtocolError: can't handle event type Response when role=SERVER and state=MUST_CLOSE"
    return [entry for entry in found if closed not in entry][:10]


async def test_what_is_left_in_the_store_is_explained(served: Served) -> None:
    store = AsyncStore(served.fleet.redis.store_url)
    try:
        assert not (await leaks(store, Keys()))[:20]
    finally:
        await store.aclose()
