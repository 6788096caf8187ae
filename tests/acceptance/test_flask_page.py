"""The program of docs/flask.md, with real processes on each kind of pool."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import ROOT
from tests.support.clients.talk import cancel_task, read, send, state
from tests.support.processes.fleet import ASYNCIO_POOL, Gateway, Process, free_port, running_fleet
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.each_kind

PAGE = (ROOT / "docs" / "flask.md").read_text(encoding="utf-8")
[PROGRAM] = re.findall(r"^```python\n(# acme.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[COMMANDS] = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MORE_AGENTS = """
import asyncio
from pathlib import Path


@a2a.agent("plain")
def plain(turn: Turn) -> str:
    return current_app.config["GREETING"]


@a2a.agent("waits")
async def waits(turn: Turn) -> str:
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.to_thread(Path(turn.text).write_text, current_app.config["GREETING"])
"""


@dataclass
class Site:
    """Address of the Flask application, and the gateway."""

    web: str
    gateway: Gateway


@pytest.fixture(scope="module", params=["prefork", "threads", "asyncio"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "acme.py").write_text(PROGRAM + MORE_AGENTS)
    ports = {"8000": str(free_port()), "8001": str(free_port())}
    with running_fleet(folder, PYTHONPATH=f"{folder}:{ROOT}", CELERY_CUSTOM_WORKER_POOL=ASYNCIO_POOL) as fleet:
        for command in COMMANDS.splitlines():
            program, *arguments = [ports.get(word, word) for word in shlex.split(command)]
            if "worker" in arguments:
                arguments += ["-c", "4", "-P", "custom" if request.param == "asyncio" else request.param]
            kind = Gateway if "gateway" in arguments else Process
            name = arguments[2] if program == "flask" else arguments[-1]
            line = [str(Path(sys.executable).parent / program), *arguments]
            process = kind(name, line, fleet.environment, folder / f"{len(fleet.processes)}.log")
            fleet.processes.append(process)
            if isinstance(process, Gateway):
                process.url = f"http://127.0.0.1:{ports['8001']}"
                gateway = process
        web = f"http://127.0.0.1:{ports['8000']}"
        eventually(lambda: serves(f"{gateway.url}/health/live") and serves(f"{web}/none"), what="the processes serve")
        yield Site(web, gateway)


def serves(url: str) -> bool:
    try:
        return httpx.get(url).status_code in (200, 404)
    except httpx.HTTPError:
        return False


def text_of(task: dict[str, Any]) -> str:
    return str(task["artifacts"][0]["parts"][0]["text"])


def test_a_view_calls_an_agent(site: Site) -> None:
    created = httpx.post(f"{site.web}/greetings", json={"name": "Ann"}, timeout=LIMIT)
    result = httpx.get(f"{site.web}/greetings/{created.json()['task']}", timeout=LIMIT)

    assert created.status_code == 202
    assert result.json() == {"state": "COMPLETED", "text": "Hello, Ann!"}


def test_an_unknown_task_is_not_found(site: Site) -> None:
    answer = httpx.get(f"{site.web}/greetings/unknown", timeout=LIMIT)

    assert (answer.status_code, answer.json()) == (404, {"error": "Task not found"})


@pytest.mark.parametrize(
    ("agent", "text", "expected"),
    [("greeter", "Ann", "Hello, Ann!"), ("plain", "", "Hello"), ("shout", "Ann", "HELLO, ANN!")],
)
def test_an_agent_has_the_application_context(site: Site, agent: str, text: str, expected: str) -> None:
    task = send(site.gateway, agent, text)

    assert (state(task), text_of(task)) == ("COMPLETED", expected)


def test_the_run_after_a_question_has_the_application_context(site: Site) -> None:
    question = send(site.gateway, "greeter", data={})
    assert state(question) == "INPUT_REQUIRED"

    assert text_of(send(site.gateway, "greeter", "Ann", task_id=question["id"])) == "Hello, Ann!"


def test_a_cancelled_agent_has_the_application_context(site: Site, tmp_path: Path) -> None:
    tasks = [send(site.gateway, "waits", str(tmp_path / name), returnImmediately=True) for name in ("one", "two")]
    for task in tasks:
        eventually(lambda t=task: state(read(site.gateway, "waits", t)) == "WORKING", what="the agent waits")

    assert state(cancel_task(site.gateway, "waits", tasks[0])) == "CANCELED"

    assert (tmp_path / "one").read_text() == "Hello"
    assert not (tmp_path / "two").exists()
    assert state(cancel_task(site.gateway, "waits", tasks[1])) == "CANCELED"
