"""compose/rolling_restart under load, as in docs/deployment.md. The script replaces the containers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.support import ROOT
from tests.support.clients import V1, message_json

from .deployment import Deployment, deployment
from .engine import run

pytestmark = pytest.mark.nightly

ROLLED = ("worker", "watcher", "gateway")
CLIENTS = 4


@pytest.fixture
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(Deployment(tmp_path_factory.mktemp("compose") / "checkout")) as deployed:
        yield deployed


async def test_a_rolling_restart_fails_no_call(deployed: Deployment) -> None:
    deployed.compose("up", "-d", "--scale", "worker=2")
    deployed.wait_until_healthy()
    before = {container for service in ROLLED for container in deployed.containers(service)}
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^compose/rolling_restart .*$", page, re.MULTILINE)
    is_over = asyncio.Event()
    clients = [asyncio.create_task(call_until(is_over, deployed)) for _ in range(CLIENTS)]

    output = await asyncio.to_thread(run, command, deployed.folder, deployed.env, within=900)
    is_over.set()
    calls = sum(await asyncio.gather(*clients), Counter[str]())

    print(f"{command}: {output}\n{dict(calls)}")
    after = {container for service in ROLLED for container in deployed.containers(service)}
    assert len(after) == len(before) == 6
    assert not after & before
    assert calls.total() > 100
    assert set(calls) == {"200 TASK_STATE_COMPLETED"}


async def call_until(is_over: asyncio.Event, deployed: Deployment) -> Counter[str]:
    """Send blocking messages through nginx, each on a new connection, and count the responses by status and state."""
    found: Counter[str] = Counter()
    while not is_over.is_set():
        async with httpx.AsyncClient(timeout=60, headers=V1) as http:
            try:
                answer = await http.post(f"{deployed.url}/agents/echo/message:send", json=message_json("hello"))
            except httpx.TransportError as e:
                found[type(e).__name__] += 1
                continue
            state_found = answer.json()["task"]["status"]["state"] if answer.status_code == 200 else answer.text[:200]
            found[f"{answer.status_code} {state_found}"] += 1
    return found
