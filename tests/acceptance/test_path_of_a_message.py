"""Modules that one blocking SendMessage request, and one CancelTask, enter. A limit on the number of modules of a
message bounds the code that a reader must open."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import httpx

import a2a_celery
from tests.support.agents import traced_modules
from tests.support.clients import talk
from tests.support.clients.bindings import message_json
from tests.support.processes.fleet import Gateway, Process, running_fleet
from tests.support.waiting import LIMIT, eventually

PAGE = Path(__file__).parents[2] / "docs" / "architecture" / "message.md"

PACKAGE = Path(a2a_celery.__file__).parent

MOST = 73
"""Maximum number of modules on the path. The number may only be lowered."""

TRIES = 5
"""Number of traces. Only one of them must stay on the path, because periodic jobs enter other modules."""


def test_a_message_enters_the_modules_that_the_page_names(tmp_path: Path) -> None:
    page_modules = modules_of("Modules on the path")
    assert len(page_modules) <= MOST
    with running_fleet(
        tmp_path, app="tests.support.agents.traced_modules", **{traced_modules.FOLDER: str(tmp_path)}
    ) as fleet:
        worker, gateway = fleet.worker(pool="threads"), fleet.gateway()
        send(gateway.url)  # imports modules and opens connections
        for _ in range(TRIES):
            begin_trace(tmp_path, worker, gateway)
            send(gateway.url)
            worker_modules, gateway_modules = end_trace(tmp_path, worker, gateway)
            assert "execution/run.py" in worker_modules
            assert "gateway/handler.py" in gateway_modules
            if worker_modules | gateway_modules <= page_modules:
                break

    assert worker_modules | gateway_modules <= page_modules


def test_a_cancel_enters_the_modules_that_the_page_names(tmp_path: Path) -> None:
    cancel_modules = modules_of("Modules of a cancel")
    page_modules = cancel_modules | modules_of("Modules on the path")
    assert [module for module in cancel_modules if not (PACKAGE / module).exists()] == []
    with running_fleet(
        tmp_path, app="tests.support.agents.traced_modules", **{traced_modules.FOLDER: str(tmp_path)}
    ) as fleet:
        worker, gateway = fleet.worker(pool="threads"), fleet.gateway()
        cancel(gateway, waiting_task(gateway))  # imports modules and opens connections
        for _ in range(TRIES):
            task = waiting_task(gateway)
            begin_trace(tmp_path, worker, gateway)
            cancel(gateway, task)
            entered_modules = set().union(*end_trace(tmp_path, worker, gateway))
            assert {"execution/process/leases.py", "execution/run.py", "gateway/handler.py"} <= entered_modules
            if entered_modules <= page_modules:
                break

    assert entered_modules <= page_modules


def modules_of(title: str) -> set[str]:
    """Return the modules that a section of the documentation page names."""
    return set(re.findall(r"`([a-z_0-9/]+\.py)`", section(title)))


def begin_trace(folder: Path, *processes: Process) -> None:
    for process in processes:
        signal_process(process, traced_modules.BEGIN, folder, "begin")


def end_trace(folder: Path, *processes: Process) -> list[set[str]]:
    """Return the modules that each process has entered since `begin_trace`."""
    return [set(signal_process(process, traced_modules.END, folder, "end").split()) for process in processes]


def waiting_task(gateway: Gateway) -> dict[str, Any]:
    """Start a task, and return the task when its agent waits."""
    task = talk.send(gateway, "waits", "", returnImmediately=True)
    eventually(lambda: talk.state(talk.read(gateway, "waits", task)) == "WORKING", what="the agent waits")
    return task


def cancel(gateway: Gateway, task: dict[str, Any]) -> None:
    assert talk.state(talk.cancel_task(gateway, "waits", task)) == "CANCELED"


def section(title: str) -> str:
    """Return a section of the documentation page."""
    return PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def send(url: str) -> None:
    answer = httpx.post(
        f"{url}/message:send", json=message_json("hello"), headers={"A2A-Version": "1.0"}, timeout=LIMIT
    )
    assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


def signal_process(process: Process, number: int, folder: Path, file_suffix: str) -> str:
    """Send the signal `number` to a process. Return the text that the process writes to ``<pid>.<written>``."""
    path = folder / f"{process.pid}.{file_suffix}"
    path.unlink(missing_ok=True)
    os.kill(process.pid, number)
    eventually(path.exists, what=f"{path} is written")
    return path.read_text()
