"""Existing Celery tasks as agents: their arguments, results, retries, limits, pauses and canvases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskStatusUpdateEvent

from a2a_celery.dispatch import Canvas
from a2a_celery.lifecycle.outcomes import (
    AGENT_FAILED,
    AGENT_REFUSED,
    AGENT_UNKNOWN,
    CANCELED_BY_AGENT,
    CANCELED_BY_OPERATOR,
    INVALID_RESPONSE,
    OUT_OF_TIME,
    WORKER_LOST,
)
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CELERY_STATE, MAX_ATTEMPTS, NEXT_ATTEMPT_AT, own_metadata
from a2a_celery.store import Keys
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import message_json, rest
from tests.support.clients.talk import read, send, state
from tests.support.processes.consumers import wait_for_acknowledgement
from tests.support.processes.fleet import running_fleet
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.waiting import eventually

POOLS = ("prefork", "threads", "solo", "gevent")
WORKED = ["SUBMITTED", "WORKING"]
DONE = [*WORKED, "artifact", "COMPLETED"]


@pytest.fixture(scope="module", params=POOLS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str
) -> Iterator[SystemUnderTest]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_system(folder, request.param, broker, app="tests.support.agents.plain_tasks", concurrency=4) as system:
        system.fleet.watcher()
        yield system


def artifacts(task: dict[str, Any]) -> list[Any]:
    """Return the value of each artifact."""
    return [
        part.get("text", part.get("data", part.get("raw"))) for a in task.get("artifacts", []) for part in a["parts"]
    ]


ENDS: list[tuple[str, dict[str, Any], list[str], list[Any], str | None, list[str]]] = [
    # task, arguments, the log, artifacts, the client's text, Celery's events
    ("shout", {"text": "hey"}, DONE, ["HEY"], None, ["succeeded"]),
    ("gives", {"what": "none"}, [*WORKED, "COMPLETED"], [], None, ["succeeded"]),
    ("gives", {"what": "bytes"}, DONE, ["cmF3"], None, ["succeeded"]),
    ("gives", {"what": "tuple"}, DONE, [[1, 2]], None, ["succeeded"]),
    ("gives", {"what": "date"}, DONE, ["2030-01-02"], None, ["succeeded"]),
    ("gives", {"what": "nan"}, [*WORKED, "FAILED"], [], INVALID_RESPONSE, ["failed"]),
    ("says", {}, [*WORKED, "WORKING", "artifact", "COMPLETED"], ["extra", "a task id"], None, ["succeeded"]),
    ("progress", {}, [*WORKED, *["WORKING"] * 3, "artifact", "COMPLETED"], ["done"], None, ["succeeded"]),
    ("raises", {"what": "ValueError"}, [*WORKED, "FAILED"], [], AGENT_FAILED, ["failed"]),
    ("raises", {"what": "MemoryError"}, [*WORKED, "FAILED"], [], AGENT_FAILED, ["failed"]),
    ("raises", {"what": "Failed"}, [*WORKED, "FAILED"], [], "No such city.", ["failed"]),
    ("raises", {"what": "Rejected"}, [*WORKED, "REJECTED"], [], "Not that.", ["failed"]),
    ("raises", {"what": "AuthRequired"}, [*WORKED, "AUTH_REQUIRED"], [], "Who are you?", ["auth_required"]),
    ("raises", {"what": "Ignore"}, [*WORKED, "COMPLETED"], [], None, []),
    ("raises", {"what": "CancelledError"}, [*WORKED, "CANCELED"], [], CANCELED_BY_AGENT, ["revoked"]),
    ("flaky", {}, [*WORKED, "WORKING", "artifact", "COMPLETED"], ["attempt 2"], None, ["retried", "succeeded"]),
    ("flaky", {"succeed_at": 9}, [*WORKED, "WORKING", "WORKING", "FAILED"], [], AGENT_FAILED,
     ["retried", "retried", "failed"]),
    ("later", {}, [*WORKED, "WORKING", "WORKING", "artifact", "COMPLETED"], ["later"], None, ["retried", "succeeded"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "data", "log", "expected_artifacts", "text", "events"),
    [pytest.param(*row, marks=pytest.mark.each_kind if row[0] in ("raises", "flaky") else ()) for row in ENDS],
    ids=lambda value: str(value)[:25],
)
def test_a_task_ends_once_like_its_celery_task(
    system: SystemUnderTest,
    agent: str,
    data: dict[str, Any],
    log: list[str],
    expected_artifacts: list[Any],
    text: str | None,
    events: list[str],
) -> None:
    task_id = system.send(agent, data=data)

    task = system.wait_for_end(agent, task_id)

    assert text_of(task) == text
    assert "secret" not in str(task)
    assert artifacts(task) == [task_id if item == "a task id" else item for item in expected_artifacts]
    eventually(lambda: len(system.events.ends_of(f"{task_id}.1")) >= len(events), what=f"{events}")
    assert sorted(system.events.ends_of(f"{task_id}.1")) == sorted(
        events
    )  # events of consecutive attempts may arrive in any order
    assert system.log(task_id) == log


def test_a_failure_has_one_reference(system: SystemUnderTest) -> None:
    task_id = system.send("raises", data={"what": "ValueError"})
    system.wait_for_end("raises", task_id)
    eventually(lambda: system.events.ends_of(f"{task_id}.1"), what="the end of the Celery task")

    output = "\n".join(process.output() for process in system.fleet.processes)
    lines = [line for line in output.splitlines() if task_id in line and "reference" in line]

    assert len(lines) == 1, lines


REFUSED = [
    ([{"data": {"url": "u"}}], "width is missing: send a data part like"),
    ([{"data": {"url": "u", "width": "wide"}}], "width: Input should be a valid integer"),
    ([{"data": {"url": "u", "width": 1.5}}], "width: Input should be a valid integer"),
    ([{"data": {"url": "u", "width": 1, "depth": 2}}], "There is no argument 'depth'"),
    ([{"data": ["u", 1]}], "A data part must be an object"),
]


@pytest.mark.parametrize(("parts", "error"), REFUSED, ids=lambda value: str(value)[:25])
def test_arguments_that_do_not_fit_the_signature_are_refused_with_a_hint(
    system: SystemUnderTest, parts: Any, error: str
) -> None:
    body = message_json("")
    body["message"]["parts"] = parts

    answer = rest(system.gateway, "POST", "/message:send", body, agent="resize")

    assert answer.status_code == 400
    violation = answer.json()["error"]["details"][1]["fieldViolations"][0]
    assert violation["field"] == "message.parts"
    assert violation["description"].startswith(error)


def test_a_text_is_the_one_argument_that_takes_it_and_whole_numbers_stay_whole(system: SystemUnderTest) -> None:
    body = message_json("u") | {"configuration": {"returnImmediately": True}}
    body["message"]["parts"].append({"data": {"width": 3}})

    task = system.wait_for_end("resize", system.send_body("resize", body))

    assert artifacts(task) == [{"url": "u", "width": 3, "height": 0, "whole": True}]


def test_a_task_that_asks_is_called_again_with_all_answers(system: SystemUnderTest) -> None:
    task_id = system.send("asks", data={})
    assert text_of(system.wait_for_end("asks", task_id)) == "Which city?"
    system.send("asks", "Rome", task_id=task_id)
    eventually(lambda: system.log(task_id)[2:] == ["INPUT_REQUIRED", "SUBMITTED", "WORKING", "INPUT_REQUIRED"])
    system.send("asks", data={"size": 3}, task_id=task_id)
    eventually(lambda: system.is_in(task_id, "COMPLETED"))

    assert artifacts(system.wait_for_end("asks", task_id)) == ["Rome 3"]


def test_answers_to_questions_of_the_turn_are_not_arguments(system: SystemUnderTest) -> None:
    task_id = system.send("confirms", data={})
    assert text_of(system.wait_for_end("confirms", task_id)) == "Which city?"
    system.send("confirms", "Rome", task_id=task_id)
    assert text_of(system.wait_for_end("confirms", task_id)) == "Are you sure?"
    system.send("confirms", "Quite sure", task_id=task_id)
    assert text_of(system.wait_for_end("confirms", task_id)) == "Which details?"
    system.send("confirms", data={"city": "Oslo", "rooms": 2}, task_id=task_id)

    assert artifacts(system.wait_for_end("confirms", task_id)) == ['Rome, Quite sure, {"city": "Oslo", "rooms": 2.0}']


def test_a_retry_has_the_number_and_time_of_the_next_attempt(system: SystemUnderTest) -> None:
    task_id = system.send("later", data={})

    metadata = system.wait_for_end("later", task_id)["metadata"]

    assert metadata == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 4})
    retry_event = system.store.run(read_log(Keys("a2a"), task_id, 2)).entries[0].event
    assert isinstance(retry_event, TaskStatusUpdateEvent)
    assert retry_event.metadata[NEXT_ATTEMPT_AT].startswith("20")


def test_custom_states_are_progress(system: SystemUnderTest) -> None:
    task_id = system.send("progress", data={"steps": 2})
    system.wait_for_end("progress", task_id)

    entries = system.store.run(read_log(Keys("a2a"), task_id, 0)).entries
    metadata = [
        dict(entry.event.metadata) for entry in entries if hasattr(entry.event, "status") and entry.event.metadata
    ]
    assert metadata == [{"step": n, "of": 2} | own_metadata({CELERY_STATE: "PROGRESS"}) for n in (1, 2)]
    assert system.result(task_id).state == "SUCCESS"


@pytest.mark.each_kind
def test_reject_with_late_acknowledgement_puts_it_back(system: SystemUnderTest, tmp_path: Path) -> None:
    task_id = system.send("requeues", data={"folder": str(tmp_path)})

    assert artifacts(system.wait_for_end("requeues", task_id)) == ["second time"]
    assert system.log(task_id) == [*WORKED, "WORKING", "artifact", "COMPLETED"]


def test_reject_refuses(system: SystemUnderTest) -> None:
    assert text_of(system.wait_for_end("raises", system.send("raises", data={"what": "Reject"}))) == AGENT_REFUSED


@pytest.mark.every_cell
@pytest.mark.parametrize("agent", ["soft", "hard"])
def test_celerys_time_limits(system: SystemUnderTest, agent: str) -> None:
    task_id = system.send(agent, data={"seconds": 5})

    assert text_of(system.wait_for_end(agent, task_id)) == OUT_OF_TIME
    assert system.log(task_id) == [*WORKED, "FAILED"]


def test_a_soft_limit_that_the_task_catches_is_its_own_affair(system: SystemUnderTest) -> None:
    if system.pool == "prefork":  # only this pool raises SoftTimeLimitExceeded in the task
        task_id = system.send("soft", data={"seconds": 30, "tidy": True})

        assert artifacts(system.wait_for_end("soft", task_id)) == ["tidied up"]


@pytest.mark.every_cell
@pytest.mark.parametrize("what", ["SystemExit", "SIGKILL"])
def test_a_task_that_ends_its_process(system: SystemUnderTest, what: str) -> None:
    if what == "SIGKILL" and system.pool != "prefork":  # the whole worker is killed
        return
    task_id = system.send("raises", data={"what": what})

    assert text_of(system.wait_for_end("raises", task_id)) == (
        WORKER_LOST if system.pool == "prefork" else AGENT_FAILED
    )
    assert system.log(task_id) == [*WORKED, "FAILED"]
    assert artifacts(system.wait_for_end("shout", system.send("shout", "still here"))) == ["STILL HERE"]


@pytest.mark.each_kind
def test_revoked_before_it_began(system: SystemUnderTest) -> None:
    with system.pause_consumer():
        task_id = system.send("shout", "hello")
        system.revoke(task_id)

    assert text_of(system.wait_for_end("shout", task_id)) == CANCELED_BY_OPERATOR
    assert system.log(task_id) == ["SUBMITTED", "CANCELED"]


@pytest.mark.each_kind
def test_terminated_while_it_runs(system: SystemUnderTest) -> None:
    if system.pool == "solo":  # a busy solo worker reads no broadcast
        return
    task_id = system.send("sleeps", data={"seconds": 3})
    eventually(lambda: system.is_in(task_id, "WORKING"))

    system.celery.control.revoke(f"{task_id}.1", terminate=True)

    assert text_of(system.wait_for_end("sleeps", task_id)) == CANCELED_BY_OPERATOR
    assert system.log(task_id) == [*WORKED, "CANCELED"]


CANVASES = [
    ("returned chain", [6], None),
    ("signature", [7], None),
    ("replaced by chain", [8], None),
    ("replaced by group", [[3, 7]], None),
    ("returned group", [[3, 7]], None),
    ("chord", [10], None),
    ("breaks", [], AGENT_FAILED),
    ("breaks when replaced", [], AGENT_FAILED),
]


@pytest.mark.parametrize(("how", "expected_artifacts", "text"), CANVASES)
def test_the_end_of_a_canvas_is_the_end_of_its_task(
    system: SystemUnderTest, how: str, expected_artifacts: list[Any], text: str | None
) -> None:
    task_id = system.send("canvas", data={"how": how})

    task = system.wait_for_end("canvas", task_id)

    assert (artifacts(task), text_of(task)) == (expected_artifacts, text)
    assert "secret" not in str(task)
    assert system.log(task_id) == ([*WORKED, "FAILED"] if text else DONE)


@pytest.mark.every_cell
def test_a_task_with_reject_on_worker_lost_runs_again_when_its_process_is_lost(broker: str, tmp_path: Path) -> None:
    """The test uses only prefork, because in other pools the whole worker is lost with its lease."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    with running_system(tmp_path, "prefork", broker, app="tests.support.agents.plain_tasks") as system:
        system.fleet.watcher()
        task = system.wait_for_end("dies", system.send("dies", data={"folder": str(deaths), "times": 2}))
        ended_task = system.wait_for_end("dies", system.send("dies", data={"folder": str(deaths), "times": 7}))

    assert (state(task), artifacts(task)) == ("COMPLETED", ["after 2 deaths"])
    assert state(ended_task) == "FAILED", "the task has max_retries = 3"
    assert len(list(deaths.iterdir())) == 2 + 4


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"TEST_IGNORE_RESULTS": "1"}, "set ignore_result=False on it"),
        ({"TEST_RESULTS": "rpc://"}, "the result backend rpc:// sends a result only to the process"),
        ({"TEST_ALWAYS_EAGER": "1"}, "task_always_eager leaves results in the process that has called the task"),
    ],
    ids=["ignored results", "rpc", "eager"],
)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_canvas_whose_end_no_watcher_can_read_fails_its_task(
    tmp_path: Path, pool: str, env: dict[str, str], reason: str
) -> None:
    with running_system(tmp_path, pool, "redis", app="tests.support.agents.plain_tasks", **env) as system:
        task_id = system.send("canvas", data={"how": "returned chain"})

        assert state(system.wait_for_end("canvas", task_id)) == "FAILED"
        system.worker.wait_for_output(reason)


def test_a_canvas_that_is_cancelled_ends_at_once_and_its_tasks_are_revoked(system: SystemUnderTest) -> None:
    task_id = system.send("canvas", data={"how": "sleeps"})
    record = Keys("a2a").task(task_id).record
    canvas = eventually(lambda: system.store.redis.hget(record, "canvas"), what="it has begun one")
    last, first = Canvas.from_json(canvas).ids()

    answer = rest(system.gateway, "POST", f"/tasks/{task_id}:cancel", agent="canvas").json()

    assert answer["status"]["state"] == "TASK_STATE_CANCELED"
    if system.pool == "prefork":  # other pools cannot terminate a running task
        eventually(lambda: system.celery.AsyncResult(first).state == "REVOKED", what="it is terminated")
    assert system.celery.AsyncResult(last).state in ("PENDING", "REVOKED")
    assert system.log(task_id) == [*WORKED, "CANCELED"]


def test_other_callers_of_the_celery_task_are_not_affected(system: SystemUnderTest) -> None:
    result = system.celery.send_task(
        "tests.support.agents.plain_tasks.shout", ("hey",), queue=system.fleet.queue, task_id="x.1"
    )
    eventually(lambda: system.result("x", 1).state == "SUCCESS")

    assert result.id == "x.1"
    assert system.result("x", 1).result == "HEY"


def test_no_argument_shows_in_celerys_events(system: SystemUnderTest) -> None:
    task_id = system.send("shout", "a private word")
    system.wait_for_end("shout", task_id)

    assert "private" not in system.worker.output()


def test_a_worker_without_the_task(system: SystemUnderTest) -> None:
    task_id = system.send("ghost-task", data={})

    assert text_of(system.wait_for_end("ghost-task", task_id)) == AGENT_UNKNOWN


def test_a_worker_that_knows_nothing_of_runs(tmp_path: Path, broker: str) -> None:
    """During a rolling restart, for example, a worker may run an older release of the app. The result backend contains
    the results of this worker."""
    with running_fleet(tmp_path, broker, app="tests.support.agents.plain_tasks", A2A_REDISPATCH_AFTER="1") as fleet:
        gateway, _ = fleet.gateway(), fleet.worker(app="tests.support.agents.old_release")
        fleet.watcher()
        shout_task = send(gateway, "shout", "hey", returnImmediately=True)
        error_task = send(gateway, "raises", "it", returnImmediately=True)

        eventually(lambda: state(read(gateway, "shout", shout_task)) == "COMPLETED")
        eventually(lambda: state(read(gateway, "raises", error_task)) == "FAILED")
        assert artifacts(read(gateway, "shout", shout_task)) == ["HEY as ever"]
        assert text_of(read(gateway, "raises", error_task)) == AGENT_FAILED


@pytest.mark.every_cell
@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "killed"])
def test_a_run_that_such_a_worker_began_is_left_to_it_while_it_lives(
    tmp_path: Path, broker: str, is_killed: bool
) -> None:
    start_file = tmp_path / "begun"
    with running_fleet(tmp_path, broker, app="tests.support.agents.plain_tasks", A2A_REDISPATCH_AFTER="1") as fleet:
        gateway, worker = fleet.gateway(), fleet.worker(app="tests.support.agents.old_release")
        task = send(gateway, "waits", str(start_file), returnImmediately=True)
        eventually(start_file.exists, what="the run begins")

        fleet.watcher()
        eventually(lambda: state(read(gateway, "waits", task)) == "WORKING", what="a look")

        fleet.worker()  # a second copy of the run would begin on this worker
        if is_killed:
            wait_for_acknowledgement(fleet, worker)
            worker.kill()
        else:
            (tmp_path / "begun.go").touch()
        end = "FAILED" if is_killed else "COMPLETED"
        eventually(lambda: state(read(gateway, "waits", task)) == end, what=end)
        assert artifacts(read(gateway, "waits", task)) == ([] if is_killed else ["went on"])
