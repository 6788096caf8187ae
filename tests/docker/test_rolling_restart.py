"""compose/rolling_restart under load, as in docs/deployment.md. The script replaces the containers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.support import ROOT
from tests.support.clients.bindings import V1, message_json
from tests.support.waiting import LIMIT

from .deployment import Deployment, run_deployment
from .engine import run

pytestmark = pytest.mark.nightly

ROLLED = ("worker", "watcher", "gateway")
CLIENTS = 4


@pytest.fixture
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with run_deployment(Deployment(tmp_path_factory.mktemp("compose") / "checkout")) as deployment:
        yield deployment


async def test_a_rolling_restart_fails_no_call(deployment: Deployment) -> None:
    deployment.compose("up", "-d", "--scale", "worker=2")
    deployment.wait_until_healthy()
    old_containers = {container for service in ROLLED for container in deployment.containers(service)}
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^compose/rolling_restart .*$", page, re.MULTILINE)
    is_over = asyncio.Event()
    clients = [asyncio.create_task(call_until(is_over, deployment)) for _ in range(CLIENTS)]

    output = await asyncio.to_thread(run, command, deployment.folder, deployment.env, within=900)
    is_over.set()
    calls = sum(await asyncio.gather(*clients), Counter[str]())

    print(f"{command}: {output}\n{dict(calls)}")
    new_containers = {container for service in ROLLED for container in deployment.containers(service)}
    assert output.splitlines()[-1] == "Check the deployment: compose/a2a doctor"
    for command, expected in (("doctor", "nothing wrong"), ("list --stuck", "nothing is stuck")):
        assert expected in run(f"compose/a2a {command}", deployment.folder, deployment.env)
    assert len(new_containers) == len(old_containers) == 6
    assert not new_containers & old_containers
    assert calls.total() > 100
    assert set(calls) == {"200 TASK_STATE_COMPLETED"}


async def call_until(is_over: asyncio.Event, deployment: Deployment) -> Counter[str]:
    """Send blocking messages through nginx, each on a new connection, and count the responses by status and state."""
    counts: Counter[str] = Counter()
    while not is_over.is_set():
        async with httpx.AsyncClient(timeout=LIMIT, headers=V1) as http:
            try:
                answer = await http.post(f"{deployment.url}/agents/echo/message:send", json=message_json("hello"))
            except httpx.TransportError as e:
                counts[type(e).__name__] += 1
                continue
            state_found = answer.json()["task"]["status"]["state"] if answer.status_code == 200 else answer.text[:200]
            counts[f"{answer.status_code} {state_found}"] += 1
    return counts
