"""Worker processes import their agents before the first message, and close their resources at shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.clients.bindings import message_json, rest
from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.waiting import eventually

APP = "tests.support.agents.preload_app"
MODULE = """
import gc, os, pathlib
(pathlib.Path(__file__).parent / f'imported-{os.getpid()}').touch()
async def agent(turn):
    return str(gc.get_freeze_count())
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "slow_import.py").write_text(MODULE)
    variables = {"TEST_SLOW_IMPORT": "slow_import:agent", "TEST_LIFESPAN_FOLDER": str(tmp_path)}
    with running_fleet(tmp_path, app=APP, PYTHONPATH=str(tmp_path), **variables) as fleet:
        yield fleet


def processes(folder: Path, event: str) -> set[int]:
    """Return the ids of the processes that have reported `event`."""
    return {int(path.name.removeprefix(f"{event}-")) for path in folder.glob(f"{event}-*")}


@pytest.mark.merge
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_process_imports_the_agents_when_it_starts(fleet: Fleet, tmp_path: Path, pool: str) -> None:
    worker = fleet.worker(pool=pool)

    main = psutil.Process(worker.pid)
    expected = {child.pid for child in main.children()} if pool == "prefork" else {main.pid}

    eventually(lambda: expected <= processes(tmp_path, "imported"), what="each process has imported the agent")
    assert (main.pid in processes(tmp_path, "imported")) == (pool != "prefork"), (
        "a main process that forks imports none"
    )


@pytest.mark.merge
@pytest.mark.parametrize("pool", ["prefork", "spawn", "threads", "solo", "asyncio"])
def test_the_objects_of_the_start_are_excluded_from_garbage_collection(fleet: Fleet, pool: str) -> None:
    fleet.worker(pool=pool)

    answer = rest(fleet.gateway(), "POST", "/message:send", message_json("hi"), agent="slow-import").json()

    assert int(answer["task"]["artifacts"][0]["parts"][0]["text"]) > 50_000


@pytest.mark.merge
@pytest.mark.parametrize("pool", ["prefork", "spawn", "threads", "solo", "asyncio"])
def test_a_lifespan_is_left_when_its_process_stops(fleet: Fleet, tmp_path: Path, pool: str) -> None:
    worker = fleet.worker(pool=pool)
    answer = rest(fleet.gateway(), "POST", "/message:send", message_json("hi"), agent="slow-import").json()
    task = answer["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    open_processes = processes(tmp_path, "opened")
    assert len(open_processes) == 1

    worker.stop()

    assert processes(tmp_path, "closed") == open_processes
