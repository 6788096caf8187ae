"""Logs and snapshots of executors that send events in unusual orders, as some frameworks do.

The table in execution/events/translator.py describes the same cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from a2a.helpers import get_message_text
from a2a.types import Message, Part, Role, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from a2a.utils import errors

from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.outcomes import AGENT_FAILED, CANCELED_BY_CLIENT, INVALID_RESPONSE, NEEDS_INPUT, OUT_OF_TIME
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import message_json, rest, rpc
from tests.support.processes.fleet import Gateway, running_fleet
from tests.support.waiting import eventually

ASKS, BY_CLIENT = f"INPUT_REQUIRED {NEEDS_INPUT}", f"CANCELED {CANCELED_BY_CLIENT}"


@dataclass
class Site:
    """Gateway and its store."""

    gateway: Gateway
    store: SyncStore

    def send(self, text: str, *, agent: str = "odd", task_id: str = "", wait: bool = True) -> dict[str, Any]:
        """Send a message and return the task. If `wait` is true, wait for the end of the turn."""
        fields = {"taskId": task_id} if task_id else {}
        body = message_json(text, **fields) | {"configuration": {"returnImmediately": not wait}}
        answer = rest(self.gateway, "POST", "/message:send", body, agent=agent)
        assert answer.status_code == 200, answer.text
        task: dict[str, Any] = answer.json()["task"]
        return task

    def read(self, task_id: str, agent: str = "odd") -> dict[str, Any]:
        """Return the current task."""
        task: dict[str, Any] = rest(self.gateway, "GET", f"/tasks/{task_id}", agent=agent).json()
        return task

    def log(self, task_id: str) -> list[str]:
        """Return the complete log as strings, one for each entry. Require that the versions have no gap."""
        entries = self.store.run(read_log(Keys("a2a"), task_id, 0, limit=1000)).entries
        assert [entry.version for entry in entries] == list(range(1, len(entries) + 1))
        return [event_text(entry.event, task_id) for entry in entries]


def event_text(event: Event, task_id: str) -> str:
    """Return an event of a log as text: "STATE text", "artifact=text" (or += for a chunk) or "client: text"."""
    match event:
        case TaskArtifactUpdateEvent():
            assert event.task_id == task_id
            return f"{event.artifact.artifact_id}{'+' if event.append else ''}={words(event.artifact.parts)}"
        case Message(role=Role.ROLE_USER):
            return f"client: {get_message_text(event)}"
        case Message():
            return f"agent: {get_message_text(event)}"
        case Task():
            assert event.id == task_id
            return state_and_text(event.status)
        case _:
            assert event.task_id == task_id
            return state_and_text(event.status)


def state_and_text(status: TaskStatus) -> str:
    """Return the state and the text of a status."""
    if status.HasField("message"):
        assert status.message.parts, "a message must have parts"
    name = TaskState.Name(status.state).removeprefix("TASK_STATE_")
    return f"{name} {words(status.message.parts)}".strip()


def words(parts: Any) -> str:
    return "".join(part.text if isinstance(part, Part) else part["text"] for part in parts)


def snapshot(task: dict[str, Any]) -> list[str]:
    """Return the history, artifacts and status of the task as strings: "role: text", "artifact=text" and
    "STATE text"."""
    status = task["status"]
    state = status["state"].removeprefix("TASK_STATE_")
    return [
        *(f"{m['role'].removeprefix('ROLE_').lower()}: {words(m['parts'])}" for m in task["history"]),
        *(f"{artifact['artifactId']}={words(artifact['parts'])}" for artifact in task.get("artifacts", [])),
        f"{state} {words(status.get('message', {}).get('parts', []))}".strip(),
    ]


@pytest.fixture(scope="module", params=["prefork", "threads"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_fleet(
        tmp_path_factory.mktemp(request.param), app="tests.support.agents.misbehaving_executors"
    ) as fleet:
        fleet.worker(pool=request.param, concurrency=4)
        store = SyncStore(fleet.redis.store_url)
        try:
            yield Site(fleet.gateway(), store)
        finally:
            store.close()


PARTS: list[tuple[str, list[str], list[str]]] = [
    # behaviour, log after SUBMITTED, snapshot after the client's message
    ("artifacts_without_working", ["WORKING", "a=one ", "a+=two", "COMPLETED"], ["a=one two", "COMPLETED"]),
    ("messages_without_parts", ["WORKING", "COMPLETED"], ["COMPLETED"]),
    ("answer_without_parts", ["COMPLETED"], ["COMPLETED"]),
    ("parts_without_content", ["WORKING", "a=one", "b=", "COMPLETED"], ["a=one", "b=", "COMPLETED"]),
    (
        "artifact_replaced",
        ["WORKING", "a=draft, ", "a+=continued", "a=final", "COMPLETED"],
        ["a=final", "COMPLETED"],
    ),
    ("append_to_nothing", ["WORKING", "a=one", "COMPLETED"], ["a=one", "COMPLETED"]),
    ("wrong_ids", ["WORKING", "a=mine", "COMPLETED done"], ["a=mine", "COMPLETED done"]),
    ("canceled_twice", ["CANCELED first"], ["CANCELED first"]),
    ("more_after_the_end", ["COMPLETED done"], ["COMPLETED done"]),
    ("no_end", ["WORKING", "a=all of it", "COMPLETED"], ["a=all of it", "COMPLETED"]),
    ("nothing_at_all", ["COMPLETED"], ["COMPLETED"]),
    ("paused_and_returned", ["INPUT_REQUIRED which?"], ["INPUT_REQUIRED which?"]),
    ("paused_then_an_artifact", ["AUTH_REQUIRED who?", "a=form"], ["a=form", "AUTH_REQUIRED who?"]),
    (
        "paused_and_went_on",
        ["INPUT_REQUIRED which?", "WORKING never mind", "COMPLETED"],
        ["agent: which?", "agent: never mind", "COMPLETED"],
    ),
]


@pytest.mark.parametrize(("part", "log", "remaining_texts"), PARTS, ids=[part for part, _, _ in PARTS])
def test_an_odd_order_has_its_meaning(site: Site, part: str, log: list[str], remaining_texts: list[str]) -> None:
    task_id = site.send(part)["id"]

    eventually(lambda: site.log(task_id)[1:] == log, what=f"{part} ends")
    assert snapshot(site.read(task_id)) == [f"user: {part}", *remaining_texts]
    site.send("nothing_at_all")  # the worker has continued, so late events have been written
    assert site.log(task_id) == ["SUBMITTED", *log]


def test_a_client_of_protocol_03_can_read_a_task_whose_agent_sent_parts_without_content(site: Site) -> None:
    params = {"id": site.send("parts_without_content")["id"]}

    answer = rpc(site.gateway, "tasks/get", params, agent="odd", A2A_Version="0.3")

    assert [words(artifact["parts"]) for artifact in answer["result"]["artifacts"]] == ["one", ""]
    assert answer["result"]["status"]["state"] == "completed"


def test_a_repeated_submitted_state_is_ignored(site: Site) -> None:
    task_id = site.send("submitted_each_time")["id"]
    task = site.send("go on", task_id=task_id)

    turns = ["SUBMITTED", "WORKING", ASKS, "client: go on", "SUBMITTED", "WORKING", "COMPLETED"]
    assert site.log(task_id) == turns
    assert snapshot(task) == ["user: submitted_each_time", f"agent: {NEEDS_INPUT}", "user: go on", "COMPLETED"]


def test_a_follow_up_may_begin_with_an_artifact_and_append_to_one_of_before(site: Site) -> None:
    task_id = site.send("artifacts_on_a_follow_up")["id"]
    task = site.send("go on", task_id=task_id)

    assert site.log(task_id) == [
        *("SUBMITTED", "WORKING", "a=one ", ASKS),
        *("client: go on", "SUBMITTED", "WORKING", "a+=two", "COMPLETED"),
    ]
    assert snapshot(task) == [
        *("user: artifacts_on_a_follow_up", f"agent: {NEEDS_INPUT}", "user: go on"),
        *("a=one two", "COMPLETED"),
    ]


@pytest.mark.parametrize(
    ("part", "log", "remaining_texts"),
    [
        ("swallows_its_cancellation", [BY_CLIENT], [BY_CLIENT]),
        ("completes_when_cancelled", ["a=half", BY_CLIENT], ["a=half", BY_CLIENT]),
        ("answers_when_cancelled", [BY_CLIENT], [BY_CLIENT]),
        ("pauses_when_cancelled", ["INPUT_REQUIRED sure?", BY_CLIENT], ["agent: sure?", BY_CLIENT]),
        ("fails_when_cancelled", [BY_CLIENT], [BY_CLIENT]),
        ("canceled_twice_when_cancelled", ["CANCELED first"], ["CANCELED first"]),
    ],
)
def test_what_a_client_cancels_is_canceled_once(
    site: Site, part: str, log: list[str], remaining_texts: list[str]
) -> None:
    task_id = site.send(part, wait=False)["id"]
    eventually(lambda: site.log(task_id) == ["SUBMITTED", "WORKING"], what=f"{part} works")

    answer = rest(site.gateway, "POST", f"/tasks/{task_id}:cancel", agent="odd").json()

    assert site.log(task_id) == ["SUBMITTED", "WORKING", *log]
    assert snapshot(answer) == snapshot(site.read(task_id)) == [f"user: {part}", *remaining_texts]


def test_a_time_limit_fails_the_run_although_the_executor_reports_a_cancel(site: Site) -> None:
    task = site.send("canceled_when_late", agent="odd-limited")

    assert site.log(task["id"]) == ["SUBMITTED", "WORKING", f"FAILED {OUT_OF_TIME}"]
    assert snapshot(task) == ["user: canceled_when_late", f"FAILED {OUT_OF_TIME}"]


@pytest.mark.parametrize(
    ("part", "pause"), [("wants_a_number", "INPUT_REQUIRED"), ("wants_a_password", "AUTH_REQUIRED")]
)
def test_an_answer_that_is_refused_leaves_the_task_waiting(site: Site, part: str, pause: str) -> None:
    task_id = site.send(part)["id"]

    refused_responses = [site.send(answer, task_id=task_id) for answer in ("x", "y")]
    accepted_task = site.send("7", task_id=task_id)

    assert [snapshot(task)[-1] for task in refused_responses] == [f"{pause} x is no number", f"{pause} y is no number"]
    assert site.log(task_id) == [
        *("SUBMITTED", "WORKING", f"{pause} a number?"),
        *("client: x", "SUBMITTED", "WORKING", f"{pause} x is no number"),
        *("client: y", "SUBMITTED", "WORKING", f"{pause} y is no number"),
        *("client: 7", "SUBMITTED", "WORKING", "COMPLETED 7 it is"),
    ]
    assert snapshot(accepted_task) == [
        *(f"user: {part}", "agent: a number?", "user: x", "agent: x is no number"),
        *("user: y", "agent: y is no number", "user: 7", "COMPLETED 7 it is"),
    ]


def test_a_message_that_waits_after_a_refused_answer_is_the_next_answer(site: Site) -> None:
    task_id = site.send("wants_a_password")["id"]
    site.send("slow", task_id=task_id, wait=False)
    answer = site.send("x", task_id=task_id)

    assert snapshot(answer)[-1] == "AUTH_REQUIRED x is no number"
    assert site.log(task_id)[3:] == [
        *("client: slow", "SUBMITTED", "WORKING", "AUTH_REQUIRED slow is no number"),
        *("client: x", "SUBMITTED", "WORKING", "AUTH_REQUIRED x is no number"),
    ]


REFUSING = [
    errors.InvalidParamsError,
    errors.InvalidRequestError,
    errors.UnsupportedOperationError,
    errors.ContentTypeNotSupportedError,
    errors.ExtensionSupportRequiredError,
]


@pytest.mark.parametrize("error", REFUSING, ids=lambda error: error.__name__)
def test_an_error_about_a_first_message_rejects_it(site: Site, error: type[errors.A2AError]) -> None:
    task = site.send(error.__name__)

    assert site.log(task["id"]) == ["SUBMITTED", "REJECTED not such a message"]
    assert snapshot(task) == [f"user: {error.__name__}", "REJECTED not such a message"]


@pytest.mark.parametrize("error", [errors.InternalError, errors.TaskNotFoundError])
def test_any_other_error_is_a_failure(site: Site, error: type[errors.A2AError]) -> None:
    task = site.send(error.__name__)

    assert site.log(task["id"]) == ["SUBMITTED", f"FAILED {AGENT_FAILED}"]
    assert task["status"]["message"]["metadata"]["reference"]


def test_an_answer_that_cannot_be_sent_fails_the_task_with_that_reason(site: Site) -> None:
    task = site.send("InvalidAgentResponseError")

    assert site.log(task["id"]) == ["SUBMITTED", f"FAILED {INVALID_RESPONSE}"]
    assert task["status"]["message"]["metadata"]["error"] == "INVALID_AGENT_RESPONSE"
