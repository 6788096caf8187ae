"""compose/rolling_restart with stand-ins for docker and docker-compose; tests/docker runs it on an engine."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.waiting import LIMIT

ROOT = Path(__file__).resolve().parents[2]

DOCKER = """#!/bin/sh
echo "docker $*" >> "$CALLS"
[ "$1" != inspect ] || echo "$HEALTH"
"""
COMPOSE = """#!/bin/sh
case " $* " in
  *" ps "*) cat "$CALLS.containers" ;;
  *" up "*) echo new-container >> "$CALLS.containers" ;;
esac
"""


def restart(folder: Path, health: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Restart a service with one container, whose successor has the given health. Return the process, and the calls to
    docker except ``docker inspect``."""
    for name, text in (("docker", DOCKER), ("docker-compose", COMPOSE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "calls.containers").write_text("old-container\n")
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "HEALTH": health,
        "HEALTHY_WITHIN": "0",
        "SERVICES": "worker",
    }
    command = [str(ROOT / "compose" / "rolling_restart"), "-f", "compose/compose.yaml"]
    process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    calls = (folder / "calls").read_text().splitlines()
    return process, [call for call in calls if not call.startswith("docker inspect")]


def test_an_old_container_is_stopped_when_its_successor_is_healthy(tmp_path: Path) -> None:
    process, calls = restart(tmp_path, "healthy")

    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == (
        f"worker: new-containe replaces old-containe\nCheck the deployment: {ROOT}/compose/a2a doctor\n"
    )
    assert calls == ["docker stop old-container", "docker rm old-container"]


def test_a_new_container_that_is_not_healthy_stops_the_restart(tmp_path: Path) -> None:
    """Each script waits for a second, so the scripts run at the same time."""
    folders = {health: tmp_path / health for health in ("starting", "unhealthy")}
    for folder in folders.values():
        folder.mkdir()
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(restart, folders.values(), folders))

    assert [(process.returncode, calls) for process, calls in results] == [(1, [])] * 2
    assert [process.stderr for process, _ in results] == [
        "the new container new-containe is not healthy after 0 s. The old containers still run.\n"
        "See docker logs new-containe, remove it with docker rm -f new-containe, and start the rolling restart again.\n"
    ] * 2
