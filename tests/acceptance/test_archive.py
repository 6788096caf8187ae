"""Archive of terminal tasks on PostgreSQL. The gateway lists and reads archived tasks together with the tasks in the
store. An outage of the database loses no task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from a2a.types import Task
from google.protobuf.json_format import ParseDict

from a2a_celery.store import SyncStore
from tests.acceptance.test_callers import ALICE, BOB, start_guarded
from tests.conftest import require_server
from tests.support.clients.bindings import message_json, rest
from tests.support.processes.databases import Postgres, running_database
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.receivers.posts import DELIVERING, SECRET, body_with_config
from tests.support.receivers.receiver import receiver
from tests.support.receivers.scrapes import scrape
from tests.support.waiting import eventually

RETENTION = 2


@dataclass
class ArchivingFleet:
    """Fleet that keeps terminal tasks in the store for `RETENTION` seconds."""

    fleet: Fleet
    gateway: Gateway
    database: Postgres

    def create_ended_task(self, caller: dict[str, str] = ALICE, **config: Any) -> dict[str, Any]:
        """Create a task, require that it is COMPLETED, and return it."""
        body = message_json("hello")
        answer = rest(
            self.gateway, "POST", "/message:send", body_with_config(body, **config) if config else body, **caller
        )
        task: dict[str, Any] = answer.json()["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        return task

    def read(self, task_id: str, caller: dict[str, str] = ALICE) -> tuple[int, dict[str, Any]]:
        """Request a task, and return the status code and the body of the response."""
        answer = rest(self.gateway, "GET", f"/tasks/{task_id}", **caller)
        return answer.status_code, answer.json()

    def page(self, token: str = "", caller: dict[str, str] = ALICE) -> dict[str, Any]:
        """Return one page of the task list. A page has up to two tasks."""
        answer = rest(self.gateway, "GET", f"/tasks?pageSize=2&includeArtifacts=true&pageToken={token}", **caller)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def pages(self, caller: dict[str, str] = ALICE) -> Iterator[dict[str, Any]]:
        """Yield all pages in the order in which a client requests them."""
        page = self.page(caller=caller)
        yield page
        while page.get("nextPageToken"):
            page = self.page(page["nextPageToken"], caller)
            yield page

    def stored_ids(self) -> set[str]:
        """Return the ids of the tasks in Redis."""
        store = SyncStore(self.fleet.redis.store_url)
        task_ids = {key.decode().split("{")[1].split("}")[0] for key in store.redis.scan_iter("a2a:{*}:task")}
        store.close()
        return task_ids

    def wait_for_removal(self, *tasks: dict[str, Any]) -> None:
        """Wait until the tasks are no longer in Redis."""
        task_ids = {task["id"] for task in tasks}
        eventually(lambda: not task_ids & self.stored_ids(), what="they are archived", every=0.1)

    def reason_of(self, task: dict[str, Any], method: str, path: str, body: Any = None, **headers: str) -> str:
        """Send a request about a task, and return the reason of the error."""
        answer = rest(self.gateway, method, path.format(task["id"]), body, **ALICE, **headers)
        assert answer.status_code >= 400, answer.text
        reason: str = answer.json()["error"]["details"][0]["reason"]
        return reason


@pytest.fixture(scope="module")
def archive_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchivingFleet]:
    require_server(Postgres)
    with running_database(Postgres) as database:
        assert isinstance(database, Postgres)
        env = {"A2A_ARCHIVE_URL": database.url, "A2A_RETENTION": str(RETENTION), **DELIVERING}
        with running_fleet(tmp_path_factory.mktemp("fleet"), **env) as fleet:
            fleet.worker(pool="threads", concurrency=8)
            fleet.watcher()
            yield ArchivingFleet(fleet, start_guarded(fleet, **env), database)


def proto(task: dict[str, Any]) -> Task:
    """Convert a task to a protobuf message, so that comparisons ignore the empty fields in lists."""
    return ParseDict(task, Task())


def test_lists_span_the_store_and_the_archive(archive_fleet: ArchivingFleet) -> None:
    with receiver() as hook:
        first = [
            archive_fleet.create_ended_task(
                url=hook.url(), authentication={"scheme": "Bearer", "credentials": "s3cr3t-of-the-hook"}
            )
        ]
        first += [archive_fleet.create_ended_task() for _ in range(4)]
        foreign = archive_fleet.create_ended_task(BOB)
        tasks_before = {task["id"]: archive_fleet.read(task["id"])[1] for task in first}
        archive_fleet.wait_for_removal(*first, foreign)
    later_tasks = [archive_fleet.create_ended_task() for _ in range(3)]

    task_list, totals = [], []
    for page in archive_fleet.pages():
        task_list += page["tasks"]
        totals.append(page["totalSize"])
        archive_fleet.create_ended_task()  # a newer task comes before the pages already read

    assert [task["id"] for task in task_list] == [task["id"] for task in reversed(first + later_tasks)]
    assert totals == [8 + more for more in range(len(totals))]
    for task in first:
        assert archive_fleet.read(task["id"]) == (200, tasks_before[task["id"]])
        assert proto(next(item for item in task_list if item["id"] == task["id"])) == proto(tasks_before[task["id"]])
    assert archive_fleet.read(first[0]["id"], BOB)[0] == archive_fleet.read("unknown", BOB)[0] == 404
    assert [task["id"] for page in archive_fleet.pages(BOB) for task in page["tasks"]] == [foreign["id"]]

    sql_dump = archive_fleet.database.sql_dump()
    assert first[0]["id"] in sql_dump
    assert not [secret for secret in ("s3cr3t-of-the-hook", SECRET, hook.url()) if secret in sql_dump]


def test_an_archived_task_has_ended_and_is_not_unknown(archive_fleet: ArchivingFleet) -> None:
    task, push = archive_fleet.create_ended_task(), "/tasks/{}/pushNotificationConfigs"
    archive_fleet.wait_for_removal(task)

    second_body = message_json("more", taskId=task["id"])
    assert archive_fleet.reason_of(task, "POST", "/tasks/{}:cancel") == "TASK_NOT_CANCELABLE"
    assert archive_fleet.reason_of(task, "POST", "/message:send", second_body) == "UNSUPPORTED_OPERATION"
    assert archive_fleet.reason_of(task, "POST", "/message:stream", second_body) == "UNSUPPORTED_OPERATION"
    assert archive_fleet.reason_of(task, "POST", "/tasks/{}:subscribe") == "UNSUPPORTED_OPERATION"
    assert archive_fleet.reason_of(task, "POST", "/tasks/{}:subscribe", last_event_id="2") == "UNSUPPORTED_OPERATION"
    config = {"url": "https://127.0.0.1/hook", "taskId": task["id"]}
    assert archive_fleet.reason_of(task, "POST", push, config) == "UNSUPPORTED_OPERATION"
    assert archive_fleet.reason_of(task, "GET", f"{push}/any") == "TASK_NOT_FOUND"  # the config is missing
    assert rest(archive_fleet.gateway, "GET", push.format(task["id"]), **ALICE).json().get("configs", []) == []
    assert archive_fleet.reason_of({"id": "unknown"}, "POST", "/tasks/{}:cancel") == "TASK_NOT_FOUND"
    assert (
        archive_fleet.reason_of({"id": "unknown"}, "POST", "/message:send", message_json("x", taskId="unknown"))
        == "TASK_NOT_FOUND"
    )
    assert archive_fleet.read(task["id"])[1]["status"] == task["status"]


def test_an_outage_of_the_database_loses_nothing(archive_fleet: ArchivingFleet) -> None:
    archived_task = archive_fleet.create_ended_task()
    archive_fleet.wait_for_removal(archived_task)
    [watcher] = [process for process in archive_fleet.fleet.processes if process.name.startswith("watcher")]

    archive_fleet.database.stop()
    late_tasks = [archive_fleet.create_ended_task() for _ in range(3)]
    eventually(lambda: "3 ended tasks are due" in watcher.output(), what="the watcher says it")

    assert {task["id"] for task in late_tasks} <= archive_fleet.stored_ids()
    assert [archive_fleet.read(task["id"])[0] for task in (*late_tasks, archived_task)] == [200, 200, 200, 503]
    assert scrape(archive_fleet.gateway.url).get("a2a_archive_waiting", state="due") == 3
    assert scrape(archive_fleet.gateway.url).get("a2a_archive_lag_seconds") > 0
    doctor = archive_fleet.fleet.command("a2a", "doctor")
    assert "wrong  archive: the archive failed: " in doctor.stdout
    assert "archivist" not in doctor.stdout + watcher.output(), "who asks the database is nobody's to read"

    archive_fleet.database.start()
    archive_fleet.wait_for_removal(*late_tasks)
    assert [archive_fleet.read(task["id"])[0] for task in (*late_tasks, archived_task)] == [200] * 4
    assert [task["id"] for task in archive_fleet.page()["tasks"]] == [task["id"] for task in reversed(late_tasks[1:])]
    assert scrape(archive_fleet.gateway.url).get("a2a_tasks_archived_total", agent="echo") >= 4
