"""Task families with real processes. Children are recorded, shown, and cancelled with their parent."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_celery.features.families.family import Family, read_family
from a2a_celery.lifecycle.outcomes import CANCELED_WITH_RUN
from a2a_celery.lifecycle.states import CANCELED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.tasks.commands import read_task
from tests.support.clients.operator import Operator
from tests.support.clients.talk import HEADERS, cancel, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import eventually

APP = "tests.support.agents.family_agents"
KEYS = Keys("a2a")


@dataclass
class Families:
    """Fleet with a gateway and a watcher, without workers."""

    fleet: Fleet
    gateway: Gateway
    store: SyncStore

    def family(self, task_id: str) -> Family:
        """Return the stored family of a task."""
        family = self.store.run(read_family(KEYS, None, task_id))
        assert family is not None
        return family

    def children(self, task_id: str, number: int) -> list[str]:
        """Wait until a task has at least `number` children. Return the ids of all children."""

        def all_children() -> list[str]:
            children = self.family(task_id).children
            return [child.task_id for child in children] if len(children) >= number else []

        return eventually(all_children, what=f"{number} children")

    def reaches(self, task_id: str, expected_state: int) -> None:
        """Wait until a task is in the state `expected_state`."""
        eventually(
            lambda: self.family(task_id).task.state == expected_state, what=f"{task_id} reaches {expected_state}"
        )

    def begin(self, text: str, agent: str = "starts") -> dict[str, Any]:
        """Send a message, and return the task without waiting for it to finish."""
        return send(self.gateway, agent, text, returnImmediately=True)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Families]:
    env = {"A2A_LEASE_TTL": "2"}
    with running_fleet(tmp_path_factory.mktemp("families"), broker, app=APP, **env) as fleet:
        fleet.watcher()
        store = SyncStore(fleet.redis.store_url)
        gateway = fleet.gateway()
        fleet.set_variable("TEST_GATEWAY", gateway.url)
        yield Families(fleet, gateway, store)
        store.close()


@pytest.fixture(scope="module")
def worker(families: Families) -> None:
    families.fleet.worker(pool="threads", concurrency=40)


def require_canceled_family(families: Families, parent_id: str) -> None:
    """Require that all descendants of a cancelled task of the agent "starts" are cancelled, except the survivor."""
    relay, survivor = families.children(parent_id, 2)
    [grandchild] = families.children(relay, 1)
    families.reaches(relay, CANCELED)
    families.reaches(grandchild, CANCELED)
    stored_task = families.store.run(read_task(KEYS, None, relay))
    assert stored_task is not None
    assert stored_task[0].status.message.parts[0].text == CANCELED_WITH_RUN
    assert families.family(survivor).task.state == WORKING
    cancel(families.gateway, "waits", {"id": survivor})


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("text", ["wait", "ask"], ids=["working", "input required"])
def test_a_cancel_of_the_parent_cancels_the_family(families: Families, text: str) -> None:
    task = families.begin(text)
    families.children(families.children(task["id"], 2)[0], 1)
    families.reaches(task["id"], INPUT_REQUIRED if text == "ask" else WORKING)

    cancel(families.gateway, "starts", task)

    require_canceled_family(families, task["id"])


@pytest.mark.usefixtures("worker")
def test_a_parent_that_fails_cancels_its_family(families: Families, tmp_path: Path) -> None:
    task = families.begin(f"fail {tmp_path / 'go'}")
    families.children(families.children(task["id"], 2)[0], 1)

    (tmp_path / "go").touch()
    families.reaches(task["id"], FAILED)

    require_canceled_family(families, task["id"])


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("end", [CANCELED, FAILED], ids=["cancelled", "dead letter"])
def test_a_parent_whose_worker_died_is_ended_with_its_family(families: Families, end: int) -> None:
    """The memory of the worker is lost, so a watcher cancels the children that the store has recorded."""
    fleet = families.fleet
    queue = f"{fleet.queue}-mortal"
    fleet.queues.append(queue)
    options = ("-n", f"{queue}@%h", "-Q", queue, "-P", "threads", "-c", "1", "--without-mingle")
    mortal = fleet.start("mortal", "worker", *options, "-l", "INFO")
    mortal.wait_for_output(" ready.")
    task = families.begin("wait", "mortal")
    families.children(families.children(task["id"], 2)[0], 1)

    mortal.signal(signal.SIGKILL)
    if end == CANCELED:
        cancel(families.gateway, "mortal", task)
    families.reaches(task["id"], end)

    require_canceled_family(families, task["id"])


@pytest.mark.usefixtures("worker")
def test_the_steps_of_a_canvas_are_children_too(families: Families) -> None:
    task = families.begin("go", "steps")

    echo, waiting_child = families.children(task["id"], 2)
    assert [families.family(child).task.agent for child in (echo, waiting_child)] == ["echo", "waits"]

    cancel(families.gateway, "steps", task)
    families.reaches(waiting_child, CANCELED)


@pytest.mark.usefixtures("worker")
def test_an_agent_that_calls_itself_is_bounded(families: Families) -> None:
    task = send(families.gateway, "recurses", "down")

    assert state(task) == "COMPLETED"
    [text] = [part["text"] for artifact in task["artifacts"] for part in artifact["parts"]]
    assert text.startswith("UnsupportedOperationError: The parent task has 16 ancestors")


@pytest.mark.usefixtures("worker")
def test_a_family_is_shown_to_its_owner_and_to_operators(families: Families) -> None:
    task = families.begin("done")
    relay, survivor = families.children(task["id"], 2)
    families.reaches(relay, WORKING)
    [grandchild] = families.children(relay, 1)
    eventually(lambda: state(read(families.gateway, "starts", task)) == "COMPLETED", what="the parent ends")

    url = f"{families.gateway.url}/agents"
    family_tree = httpx.get(f"{url}/starts/families/{task['id']}", headers=HEADERS).json()
    child = httpx.get(f"{url}/relays/families/{relay}", headers=HEADERS).json()
    other = httpx.get(f"{url}/relays/families/{task['id']}", headers=HEADERS)
    lines = Operator(families.fleet)("get", relay, "--tree").stdout.splitlines()
    rows = Operator(families.fleet).rows("get", task["id"], "--tree")

    assert [(item["id"], item["agent"], item["cancelWithParent"]) for item in family_tree["children"]] == [
        (relay, "relays", True),
        (survivor, "waits", False),
    ]
    assert family_tree["parent"] is None
    assert child["parent"]["id"] == task["id"]
    assert other.status_code == 404
    assert read(families.gateway, "relays", {"id": relay})["metadata"]["a2a_celery/parentTaskId"] == task["id"]
    assert [line.split()[:3] for line in lines] == [
        [task["id"], "starts", "COMPLETED"],
        [relay, "relays", "WORKING"],
        [grandchild, "waits", "WORKING"],
        [survivor, "waits", "WORKING"],
    ]
    assert [(item["depth"], item["parent"], item["id"]) for item in rows] == [
        (0, None, task["id"]),
        (1, task["id"], relay),
        (2, relay, grandchild),
        (1, task["id"], survivor),
    ]
    for agent, task_id in (("relays", relay), ("waits", survivor), ("waits", grandchild)):
        cancel(families.gateway, agent, {"id": task_id})
