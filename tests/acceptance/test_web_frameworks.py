"""The programs of docs/fastapi.md, with real processes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support import ROOT
from tests.support.processes.fleet import Fleet, Process, free_port
from tests.support.waiting import LIMIT, eventually

PAGE = (ROOT / "docs" / "fastapi.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS, CLIENT_COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
V1 = {"A2A-Version": "1.0"}


@pytest.fixture
def web(fleet: Fleet, tmp_path: Path) -> str:
    """URL of the documented application, with its processes running."""
    for name, code in PROGRAMS.items():
        (tmp_path / name).write_text(code)
    port = free_port()
    for command in COMMANDS.splitlines():
        program, *arguments = shlex.split(command.replace("8000", str(port)))
        name = f"{program}-{arguments[-1]}"
        environment = fleet.environment | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
        line = [str(Path(sys.executable).parent / program), *arguments]
        fleet.processes.append(Process(name, line, environment, tmp_path / f"{name}.log"))
    url = f"http://127.0.0.1:{port}"
    eventually(lambda: serves(url), what="the application serves")
    return url


def serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/a2a/health/live").status_code == 200
    except httpx.HTTPError:
        return False


def test_routes_and_clients_see_the_same_tasks(web: str) -> None:
    response = httpx.post(f"{web}/counts", json={"text": "one two three"}, timeout=LIMIT)
    task_id = response.json()["task"]
    result = httpx.get(f"{web}/counts/{task_id}?wait={LIMIT}", timeout=2 * LIMIT)
    events = httpx.get(f"{web}/counts/{task_id}/events", timeout=LIMIT)
    task = httpx.get(f"{web}/a2a/tasks/{task_id}", headers=V1, timeout=LIMIT)
    card = httpx.get(f"{web}/a2a/.well-known/agent-card.json")
    unknown = [httpx.request(*request) for request in unknown_tasks(web)]

    assert response.status_code == 202
    assert result.json() == {"state": "COMPLETED", "text": "3 words"}
    assert events.text.endswith("\n\n")
    assert "TASK_STATE_COMPLETED" in events.text.splitlines()[-2]
    assert task.json()["artifacts"][0]["parts"] == [{"text": "3 words"}]
    assert {i["url"].rstrip("/") for i in card.json()["supportedInterfaces"]} == {f"{web}/a2a"}
    assert [response.status_code for response in unknown] == [404, 404, 404]


def unknown_tasks(web: str) -> list[tuple[str, str]]:
    """Return requests for a task that does not exist, as method and URL."""
    url = f"{web}/counts/nobody"
    return [("GET", url), ("GET", f"{url}/events"), ("DELETE", url)]


def test_commands_call_and_answer_the_mounted_agent(web: str, fleet: Fleet, tmp_path: Path) -> None:
    question = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"data": {}}]}}
    question_task = httpx.post(f"{web}/a2a/message:send", json=question, headers=V1, timeout=LIMIT).json()["task"]
    environment = fleet.environment | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    outputs = []
    for command in CLIENT_COMMANDS.splitlines():
        program, *arguments = shlex.split(
            command.replace("http://localhost:8000", web).replace(" ID ", f" {question_task['id']} ")
        )
        line = [str(Path(sys.executable).parent / program), *arguments]
        outputs.append(subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stdout)

    assert question_task["status"]["message"]["parts"] == [{"text": "Which text?"}]
    assert all("2 words" in output for output in outputs)


def test_a_route_cancels_a_task(web: str) -> None:
    question = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"data": {}}]}}
    task_id = httpx.post(f"{web}/a2a/message:send", json=question, headers=V1, timeout=LIMIT).json()["task"]["id"]

    response = httpx.delete(f"{web}/counts/{task_id}", timeout=LIMIT)

    assert response.json() == {"state": "CANCELED"}
