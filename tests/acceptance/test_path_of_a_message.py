"""Number of modules that one blocking SendMessage request enters. A limit on this number bounds the code that a
reader must open."""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx

from tests.support import traced_modules
from tests.support.clients import message_json
from tests.support.fleet import Process, running_fleet
from tests.support.waiting import LIMIT, eventually

PAGE = Path(__file__).parents[2] / "docs" / "architecture" / "message.md"

MOST = 82
"""Maximum number of modules on the path. The number may only be lowered."""

TRIES = 5
"""Number of traces. Only one of them must stay on the path, because periodic jobs enter other modules."""


def test_a_message_enters_the_modules_that_the_page_names(tmp_path: Path) -> None:
    page_modules = set(re.findall(r"`([a-z_0-9/]+\.py)`", section("Modules on the path")))
    assert len(page_modules) <= MOST
    with running_fleet(tmp_path, app="tests.support.traced_modules", **{traced_modules.FOLDER: str(tmp_path)}) as fleet:
        worker, gateway = fleet.worker(pool="threads"), fleet.gateway()
        send(gateway.url)  # imports modules and opens connections
        for _ in range(TRIES):
            for process in (worker, gateway):
                signal_process(process, traced_modules.BEGIN, tmp_path, "begin")
            send(gateway.url)
            worker_modules, gateway_modules = (
                set(signal_process(process, traced_modules.END, tmp_path, "end").split())
                for process in (worker, gateway)
            )
            assert "execution/run.py" in worker_modules
            assert "gateway/handler.py" in gateway_modules
            if worker_modules | gateway_modules <= page_modules:
                break

    assert worker_modules | gateway_modules <= page_modules


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
