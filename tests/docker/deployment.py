"""Deployment of compose/ as docs/deployment.md describes it, in a copy of the checkout and on separate ports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from a2a_celery.telemetry.names import OPEN_STREAMS
from tests.support import ROOT
from tests.support.processes.fleet import free_port
from tests.support.waiting import eventually

from .engine import buildable, run

HEALTHY = 300.0
"""Seconds within which all containers must be ready, even on a loaded machine. Workers are probed twice a minute."""


PURPOSES = ("build", "up", "doctor", "rabbitmq", "observability")
"""Purposes of the commands of docs/deployment.md, as in `commands_for`."""


def documented_commands() -> list[str]:
    """Return the lines of the page's shell blocks about compose, in order and without comments."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    section = page.partition("## Start and stop\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def commands_for(what: str) -> list[str]:
    """Return the documented commands for one of `PURPOSES`."""
    commands = documented_commands()
    up = next(number for number, command in enumerate(commands) if " up " in command)
    command_groups = {"build": commands[:up], "up": [commands[up]]}
    for command in commands[up + 1 :]:
        purpose = next(
            (purpose for purpose in PURPOSES[2:] if f"/{purpose}.yaml" in command or f" {purpose} " in f"{command} "),
            "observability",
        )
        command_groups.setdefault(purpose, []).append(command)
    return command_groups[what]


class Deployment:
    """Deployment with docker-compose.

    Attributes:
        url: URL of nginx.
        flower: URL of Flower.
        prometheus: URL of Prometheus, if it runs.
    """

    def __init__(self, folder: Path, what: str = "up", **env: str) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "tests", "secrets", "__pycache__"))
        shutil.copy(ROOT / ".dockerignore", folder)
        self.project = f"a2a-{uuid4().hex[:8]}"
        self.what = what
        port, grpc_port, flower_port, prometheus_port = (free_port() for _ in range(4))
        self.url = f"http://127.0.0.1:{port}"
        self.flower = f"http://127.0.0.1:{flower_port}"
        self.prometheus = f"http://127.0.0.1:{prometheus_port}"
        self.files = ["-f", "compose/compose.yaml", *(["-f", f"compose/{what}.yaml"] if what != "up" else [])]
        self.env = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "A2A_PORT": str(port),
            "A2A_GRPC_PORT": str(grpc_port),
            "A2A_PUBLIC_URL": self.url,
            "A2A_GRPC_PUBLIC_ADDRESS": f"127.0.0.1:{grpc_port}",
            "FLOWER_PORT": str(flower_port),
            "RABBITMQ_IMAGE": "rabbitmq:latest",
            "PROMETHEUS_PORT": str(prometheus_port),
            "JAEGER_PORT": str(free_port()),
            "GRAFANA_PORT": str(free_port()),
            "DOCKER_BUILDKIT": "0",
            **env,
        }

    def run(self, command: str) -> str:
        """Run a documented command, adapted to run without a terminal and to the deployment's port."""
        command = buildable(command).replace(" exec ", " exec -T ").replace("http://localhost:8000", self.url)
        return run(command, self.folder, self.env)

    def compose(self, *arguments: str) -> str:
        """Return the output of ``docker-compose <arguments>``."""
        return run(" ".join(["docker-compose", *self.files, *arguments]), self.folder, self.env)

    def containers(self, service: str = "", *, all_of_them: bool = False) -> list[str]:
        """Return the ids of the containers of a service, or of all services if `service` is "". If `all_of_them` is
        true, include stopped containers."""
        label = f"--filter label=com.docker.compose.service={service}" if service else ""
        project = f"--filter label=com.docker.compose.project={self.project}"
        every = "-a" if all_of_them else ""
        return run(f"docker ps -q --no-trunc {every} {project} {label}", self.folder, self.env).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """Return Docker's description of a container."""
        description: dict[str, Any] = json.loads(run(f"docker inspect {container}", self.folder, self.env))[0]
        return description

    def kill(self, container: str) -> None:
        """Kill the container with ``docker kill``, so that Docker does not restart it."""
        run(f"docker kill {container}", self.folder, self.env)

    def wait_until_healthy(self) -> None:
        """Wait until every container's probe succeeds."""

        def all_are() -> bool:
            unhealthy[:] = [line for line in self._statuses() if "(healthy)" not in line]
            return not unhealthy

        unhealthy: list[str] = []
        try:
            eventually(all_are, within=HEALTHY, every=1)
        except AssertionError:
            raise AssertionError(f"not healthy within {HEALTHY:g} s: {unhealthy}") from None

    def wait_until_ready(self) -> None:
        """Wait until nginx reaches a gateway, and a gateway finds store, broker and workers."""
        for is_reached, what in ((self._is_live, "nginx reaches a gateway"), (self._is_ready, "it is ready")):
            eventually(is_reached, within=HEALTHY, every=0.5, what=what)

    def ask_flower(self, path: str) -> Any:
        """Return a response of Flower's API."""
        user, _, password = (self.folder / "compose/secrets/flower_auth").read_text().strip().partition(":")
        answer = httpx.get(f"{self.flower}{path}", auth=(user, password), timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def open_streams(self, gateway: str) -> int:
        """Return the number of streams that a gateway's container serves."""
        ask = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8000/metrics').read().decode())"
        metrics = run(f'docker exec {gateway} python -S -c "{ask}"', self.folder, self.env)
        return int(sum(map(float, re.findall(rf"^{OPEN_STREAMS.name}{{.*}} (\S+)$", metrics, re.MULTILINE))))

    def logs(self) -> str:
        """Return the last output of all containers."""
        return self.compose("logs", "--no-color", "--tail=60")

    def _statuses(self) -> list[str]:
        project = f"--filter label=com.docker.compose.project={self.project}"
        return run(f"docker ps --format '{{{{.Names}}}} {{{{.Status}}}}' {project}", self.folder, self.env).splitlines()

    def _is_live(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/live", timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    def _is_ready(self) -> bool:
        """Return True if the gateway is ready. The gateway itself receives the request, because nginx does not forward
        the path of the readiness check."""
        ask = "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/ready', timeout=10)"
        try:
            self.compose("exec", "-T", "gateway", "python", "-S", "-c", f'"{ask}"')
        except AssertionError:
            return False
        return True


@contextmanager
def run_deployment(deployment: Deployment) -> Iterator[Deployment]:
    """Run the deployment with four workers, and remove it completely after the block."""
    try:
        for command in [*commands_for("build"), *commands_for(deployment.what)]:
            deployment.run(command)
        deployment.wait_until_ready()
        yield deployment
    except BaseException:
        print(deployment.logs())
        raise
    finally:
        subprocess.run(
            ["docker-compose", *deployment.files, "down", "-v", "-t", "2", "--remove-orphans"],
            cwd=deployment.folder,
            env=deployment.env,
            check=False,
            capture_output=True,
        )
