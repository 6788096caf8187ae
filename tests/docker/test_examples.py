"""examples/two_queues with Docker, started with the command in its README, as a separate Compose project."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from uuid import uuid4

import httpx

from tests.support import ROOT
from tests.support.fleet import free_port
from tests.support.waiting import LIMIT, eventually

from .deployment import commands_for
from .engine import buildable, run

FOLDER = ROOT / "examples" / "two_queues"
UP, CURLS = re.findall(r"^```sh\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_agents_answer_on_their_queues(tmp_path: Path) -> None:
    port = free_port()
    project = f"two-queues-{uuid4().hex[:8]}"
    env = {**os.environ, "A2A_PORT": str(port), "COMPOSE_PROJECT_NAME": project, "DOCKER_BUILDKIT": "0"}
    for command in commands_for("build"):
        run(buildable(command), ROOT, env)
    try:
        run(UP.replace("up --build", "up -d"), FOLDER, env)  # the image is built, with the host's network
        eventually(lambda: serves(port), every=0.5, what="the gateway serves")
        answers = [send_request(shlex.split(curl), port) for curl in CURLS.replace("\\\n", "").splitlines()]
    except BaseException:
        print(run("docker-compose logs --no-color --tail=60", FOLDER, env))
        raise
    finally:
        subprocess.run("docker-compose down -v -t 2", shell=True, cwd=FOLDER, env=env, check=False, capture_output=True)

    assert answers == ["You said: hello", "78498 primes up to 1000000"]


def serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def send_request(curl: list[str], port: int) -> str:
    """Send the request of a documented curl command, and return the text of the artifact."""
    url = next(word for word in curl if word.startswith("http://")).replace("8000", str(port))
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    task = httpx.post(url, content=curl[-1], headers=headers, timeout=LIMIT).json()["task"]
    text: str = task["artifacts"][0]["parts"][0]["text"]
    return text
