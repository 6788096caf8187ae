"""Small projects with Docker, started with the command in their README: examples/two_queues, and a new project."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx

from tests.support import ROOT
from tests.support.processes.fleet import free_port
from tests.support.waiting import LIMIT, eventually

from .deployment import commands_for
from .engine import buildable, run

A2A_CELERY = Path(sys.executable).parent / "a2a-celery"
FOLDER = ROOT / "examples" / "two_queues"
UP, CURLS = re.findall(r"^```sh\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_agents_answer_on_their_queues() -> None:
    for command in commands_for("build"):
        run(buildable(command), ROOT, {**os.environ, "DOCKER_BUILDKIT": "0"})
    command = UP.replace("up --build", "up -d")  # the image is built, with the host's network

    with run_project(FOLDER, command) as port:
        answers = [send_request(shlex.split(curl), port) for curl in CURLS.replace("\\\n", "").splitlines()]

    assert answers == ["You said: hello", "78498 primes up to 1000000"]


def test_a_new_project_asks_and_answers(tmp_path: Path) -> None:
    name = f"shop{uuid4().hex[:8]}"
    run(f"{A2A_CELERY} init {name}", tmp_path, {**os.environ})
    folder = tmp_path / name
    run(f"{sys.executable} -m pip wheel -q --no-deps --wheel-dir wheels {ROOT}", folder, {**os.environ})
    run(buildable(f"docker build -t {name} ."), folder, {**os.environ, "DOCKER_BUILDKIT": "0"})
    compose = folder / "compose.yaml"
    compose.write_text(compose.read_text().replace("127.0.0.1:8000:", "127.0.0.1:${A2A_PORT}:"))
    [command] = re.findall(r"^docker compose up .*$", (folder / "README.md").read_text(), re.MULTILINE)

    with run_project(folder, command.replace("docker compose up --build", "docker-compose up -d")) as port:
        output = run(f"echo Ann | {A2A_CELERY} call http://127.0.0.1:{port} Hi", folder, {**os.environ}, within=LIMIT)
    run(f"docker rmi {name}", folder, {**os.environ})

    assert "INPUT_REQUIRED: What is your name?" in output
    assert "Hello, Ann" in output


@contextmanager
def run_project(folder: Path, up: str) -> Iterator[int]:
    """Run the Compose project in `folder`, started with the command `up`, and yield the port of its gateway."""
    port = free_port()
    env = {
        **os.environ,
        "A2A_PORT": str(port),
        "A2A_SECRET_KEY": uuid4().hex,
        "COMPOSE_PROJECT_NAME": f"project-{uuid4().hex[:8]}",
    }
    try:
        run(up, folder, env)
        eventually(lambda: serves(port), every=0.5, what="the gateway serves")
        yield port
    except BaseException:
        print(run("docker-compose logs --no-color --tail=60", folder, env))
        raise
    finally:
        subprocess.run("docker-compose down -v -t 2", shell=True, cwd=folder, env=env, check=False, capture_output=True)


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
