"""The Docker engine that these tests run on, and the image they run: see .ci/run."""

from __future__ import annotations

import subprocess
from pathlib import Path

IMAGE = "a2a-celery"


def missing() -> str:
    """Why there is no engine; "" if there is one."""
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"docker info: {type(e).__name__}"
    return "" if done.returncode == 0 else f"docker info: {(done.stderr.splitlines() or ['no answer'])[-1]}"


def run(command: str, folder: Path, env: dict[str, str], within: float = 300) -> str:
    """Runs a line of shell in `folder` and gives what it prints; fails with all of that if it fails."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=within, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def buildable(command: str) -> str:
    """A `docker build` that reaches the package index also where only the host's network does."""
    return command.replace("docker build ", "docker build -q --network host ")
