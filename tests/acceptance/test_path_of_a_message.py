"""The modules that one blocking SendMessage enters: a reader has to open no more of them."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from tests.support import traced_modules
from tests.support.clients import message_json
from tests.support.fleet import Process, running_fleet
from tests.support.waiting import eventually

MOST_IN_THE_GATEWAY = 53
MOST_IN_THE_WORKER = 44
MOST = 80
"""Modules of a path. Change these only downwards; docs/architecture/message.md names the modules."""


def test_a_message_enters_few_modules(tmp_path: Path) -> None:
    with running_fleet(tmp_path, app="tests.support.traced_modules", **{traced_modules.FOLDER: str(tmp_path)}) as fleet:
        worker, gateway = fleet.worker(pool="threads"), fleet.gateway()
        send(gateway.url)  # what is done once only
        for process in (worker, gateway):
            signalled(process, traced_modules.BEGIN, tmp_path, "begin")
        send(gateway.url)
        inside_worker, inside_gateway = (
            set(signalled(process, traced_modules.END, tmp_path, "end").split()) for process in (worker, gateway)
        )

    print("gateway:", *sorted(inside_gateway), "\nworker:", *sorted(inside_worker))
    assert "execution/run.py" in inside_worker
    assert "gateway/handler.py" in inside_gateway
    assert len(inside_gateway) <= MOST_IN_THE_GATEWAY
    assert len(inside_worker) <= MOST_IN_THE_WORKER
    assert len(inside_gateway | inside_worker) <= MOST


def send(url: str) -> None:
    answer = httpx.post(f"{url}/message:send", json=message_json("hello"), headers={"A2A-Version": "1.0"}, timeout=60)
    assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


def signalled(process: Process, number: int, folder: Path, written: str) -> str:
    """Send a signal to a process, and return what it writes then."""
    path = folder / f"{process.pid}.{written}"
    os.kill(process.pid, number)
    eventually(path.exists, what=f"{path} is written")
    return path.read_text()
