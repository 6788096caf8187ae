"""compose/a2a with stand-ins for docker and docker-compose; tests/docker runs it on an engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.waiting import LIMIT

DOCKER = """#!/bin/sh
if [ "$1" = inspect ]; then
  case "$4" in stopped-*) echo false ;; *) echo true ;; esac
else
  echo "docker $*"
  exit 7
fi
"""
COMPOSE = """#!/bin/sh
case " $* " in
  *" ps -q "*) for service; do :; done; cat "$CONTAINERS/$service" 2>/dev/null || true ;;
  *) echo "compose $*" ;;
esac
"""
COMPOSE_FILE = f"{ROOT}/compose/compose.yaml"
URL = "-e A2A_PUBLIC_URL=http://gateway:8000"


@pytest.mark.parametrize(
    ("containers", "environ", "call", "code"),
    [
        ({"gateway": "first\nsecond\n"}, {}, f"docker exec -i {URL} first celery a2a list --stuck", 7),
        ({"gateway": "stopped-1\nthird\n"}, {}, f"docker exec -i {URL} third celery a2a list --stuck", 7),
        (
            {"gateway": "stopped-1\n", "worker": "fourth\n"},
            {},
            f"docker exec -i {URL} fourth celery a2a list --stuck",
            7,
        ),
        ({}, {}, f"compose -f {COMPOSE_FILE} run --rm --no-deps {URL} gateway celery a2a list --stuck", 0),
        (
            {},
            {"COMPOSE_FILE": "other.yaml"},
            f"compose run --rm --no-deps {URL} gateway celery a2a list --stuck",
            0,
        ),
    ],
)
def test_a_command_runs_in_a_running_container(
    tmp_path: Path, containers: dict[str, str], environ: dict[str, str], call: str, code: int
) -> None:
    for name, text in (("docker", DOCKER), ("docker-compose", COMPOSE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for service, ids in containers.items():
        (tmp_path / service).write_text(ids)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONTAINERS": str(tmp_path), **environ}

    process = subprocess.run(
        [str(ROOT / "compose" / "a2a"), "list", "--stuck"],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert (process.stdout, process.returncode) == (f"{call}\n", code)
    assert bool(process.stderr) is not bool(containers)
