"""Docker engine and image of the tests in this folder. See .ci/run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.waiting import LIMIT

IMAGE = "a2a-celery"


def missing_docker() -> str:
    """Return the reason why no Docker engine is available, or "" if an engine is available."""
    try:
        result = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"docker info: {type(e).__name__}"
    return "" if result.returncode == 0 else f"docker info: {(result.stderr.splitlines() or ['no answer'])[-1]}"


def run(command: str, folder: Path, env: dict[str, str], within: float = 300) -> str:
    """Run a shell command in `folder` and return its output. If the command fails, fail with the output."""
    result = subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=within, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    return result.stdout


def buildable(command: str) -> str:
    """Return `command` with ``docker build`` on the host's network, because other networks may not reach the package
    index."""
    return command.replace("docker build ", "docker build -q --network host ")
