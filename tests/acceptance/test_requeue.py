"""``a2a requeue`` and ``a2a list --stuck`` on real fleets. A lost task runs again on another worker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery import A2A
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.operator.requeue import Requeuer, RequeueResult
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.store import Keys, SyncStore
from tests.support import agents
from tests.support.fleet import Fleet, Gateway, running_fleet
from tests.support.talk import cancel, read, send, state
from tests.support.waiting import eventually

LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
ID = r"[0-9a-f-]{36}"

pytestmark = pytest.mark.each_kind


@pytest.fixture
def leased(tmp_path: Path, broker: str) -> Iterator[Fleet]:
    """Fleet with short leases, on each broker."""
    with running_fleet(tmp_path, broker, **LEASE) as fleet:
        yield fleet


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Fleet]:
    """Fleet with short leases, on Redis."""
    with running_fleet(tmp_path, **LEASE) as fleet:
        yield fleet


def operated(fleet: Fleet, **conf: str) -> A2A:
    """Return the fleet's app as in an operator's process. `conf` overrides settings."""
    app = Celery("tests", broker=fleet.broker_url, set_as_current=False)
    app.conf.update({"task_default_queue": fleet.queue, "a2a_store_url": fleet.redis.store_url} | conf)
    found = A2A(app)
    found.agents.update(agents.a2a.agents)
    return found


def a2a(fleet: Fleet, *arguments: str, code: int = 0, **conf: str) -> Result:
    """Run ``celery -A … a2a <arguments>`` in this process, because that is fast, and require the exit code."""
    app = operated(fleet, **conf).celery
    done = CliRunner().invoke(commands, arguments, obj=SimpleNamespace(app=app))
    assert done.exit_code == code, done.output
    return done


def json_lines(fleet: Fleet, *arguments: str, **conf: str) -> list[dict[str, Any]]:
    """Return the JSON output of a command."""
    return [json.loads(line) for line in a2a(fleet, *arguments, "--json", **conf).stdout.splitlines()]


def requeued(fleet: Fleet, task_ids: list[str]) -> list[RequeueResult]:
    """Resubmit the dead letters of the tasks and return the results."""
    found = operated(fleet)
    store = SyncStore(found.settings.store_url)
    try:
        requeuer = Requeuer(found, store, Keys())
        return [requeuer.requeue(task_id) for task_id in task_ids]
    finally:
        store.close()


def until(gateway: Gateway, agent: str, task: dict[str, Any], wanted: str) -> dict[str, Any]:
    """Wait until the task is in the state `wanted`, and return the task."""
    eventually(lambda: state(read(gateway, agent, task)) == wanted, what=f"{agent} is {wanted}")
    return read(gateway, agent, task)


def begun(gateway: Gateway, agent: str, text: str = "") -> dict[str, Any]:
    """Send a message, wait until a worker runs the task, and return the task."""
    task = send(gateway, agent, text, returnImmediately=True)
    return until(gateway, agent, task, "WORKING")


def test_a_requeued_lost_task_runs_on_another_worker(leased: Fleet) -> None:
    gateway, doomed = leased.gateway(), leased.worker(concurrency=6)
    dead = [begun(gateway, "second-time") for _ in range(5)]
    other = begun(gateway, "patient")
    doomed.kill()
    leased.watcher()
    dead = [until(gateway, "second-time", task, "FAILED") for task in dead]
    until(gateway, "patient", other, "FAILED")
    heading, *lines, hint = a2a(leased, "requeue", "--agent", "second-time").stdout.splitlines()
    assert heading.split() == ["TASK", "AGENT", "ATTEMPTS", "FAILED", "(UTC)", "CONTEXT"]
    row = next(line for line in lines if line.startswith(dead[0]["id"]))
    assert re.fullmatch(rf"\S+  second-time +1 of 1 +\S+ \S+ +{dead[0]['contextId']}", row)
    assert "a2a requeue TASK" in hint
    leased.worker(concurrency=6)

    # the first, with the command in a separate process
    done = leased.command("a2a", "requeue", dead[0]["id"])
    assert (done.returncode, done.stderr) == (0, "")
    [new_id] = re.findall(rf"^{dead[0]['id']} runs again as task ({ID})$", done.stdout.strip())
    new = until(gateway, "second-time", {"id": new_id}, "COMPLETED")
    assert new["artifacts"][0]["parts"] == [{"text": f"after {dead[0]['id']}"}]
    assert new["contextId"] == dead[0]["contextId"]
    assert new["metadata"] == own_metadata({"requeuedFrom": dead[0]["id"]})
    assert new["history"][0]["parts"] == dead[0]["history"][0]["parts"]
    assert new["history"][0]["referenceTaskIds"] == [dead[0]["id"]]
    assert read(gateway, "second-time", dead[0]) == dead[0]

    # the second, without a broker, so that a watcher publishes it
    [late] = json_lines(leased, "requeue", dead[1]["id"], broker_url="amqp://127.0.0.1:1//")
    assert late["published"] is False
    until(gateway, "second-time", {"id": late["task"]}, "COMPLETED")

    # the rest, by two operators at the same time
    left = [task["id"] for task in dead[2:]]
    with ThreadPoolExecutor(2) as operators:
        made = [one for both in operators.map(lambda _: requeued(leased, left), range(2)) for one in both]
    became = {one.dead: one.new for one in made if one.published}
    assert set(became) == set(left)
    assert {one.dead: one.new for one in made if one.published is None} == became
    for task_id in became.values():
        until(gateway, "second-time", {"id": task_id}, "COMPLETED")
    assert json_lines(leased, "requeue", dead[0]["id"]) == [
        {"task": new_id, "requeuedFrom": dead[0]["id"], "before": True}
    ]
    [dead_letter] = json_lines(leased, "requeue")
    assert dead_letter["task"] == other["id"]
    [last] = json_lines(leased, "requeue", "--all")
    assert last["requeuedFrom"] == other["id"]
    until(gateway, "patient", {"id": last["task"]}, "WORKING")


def test_a_task_that_kills_workers_is_a_dead_letter_and_others_are_refused(quick: Fleet) -> None:
    gateway = quick.gateway()
    quick.watcher()
    assert a2a(quick, "requeue", "--all").stdout == "no dead letters\n"
    poison = send(gateway, "poison", "", returnImmediately=True)
    for _ in range(2):
        victim = quick.worker(pool="solo")
        eventually(lambda v=victim: not v.running, what="the worker dies of it")
    until(gateway, "poison", poison, "FAILED")
    [dead_letter] = json_lines(quick, "requeue")
    assert (dead_letter["task"], dead_letter["attempts"], dead_letter["maxAttempts"]) == (poison["id"], 2, 2)

    quick.worker(pool="threads")
    failed, done, works = send(gateway, "fail", "x"), send(gateway, "echo", "x"), begun(gateway, "silent", "600")

    for task_id, why in {
        failed["id"]: "is FAILED: only a task that FAILED because its worker was lost or its steps changed",
        done["id"]: "is COMPLETED: only a task that FAILED",
        works["id"]: "has not ended (WORKING)",
        "nobody": "no task nobody",
    }.items():
        output = a2a(quick, "requeue", task_id, code=1)
        assert output.stderr.startswith("Error: ")
        assert why in output.stderr
        assert output.stdout == ""
    assert "not both" in a2a(quick, "requeue", "--all", "nobody", code=2).stderr
    assert "no agent 'nobody'; this app has echo," in a2a(quick, "requeue", "--agent", "nobody", code=1).stderr
    unreachable = a2a(quick, "requeue", code=1, a2a_store_url="redis://127.0.0.1:1/0").stderr
    assert "A2A_STORE_URL" in unreachable
    assert [dead_letter["task"] for dead_letter in json_lines(quick, "requeue")] == [poison["id"]]


def test_stuck_tasks_are_listed_with_what_they_wait_for(quick: Fleet) -> None:
    def whys(older_than: str = "1", *more: str) -> dict[str, str]:
        return {
            row["task"]: row["why"] for row in json_lines(quick, "list", "--stuck", "--older-than", older_than, *more)
        }

    gateway, waiting = quick.gateway(), quick.worker(pool="threads", A2A_LEASE_TTL="600")
    hangs = begun(gateway, "silent", "600")
    assert a2a(quick, "list", "--stuck").stdout.startswith("nothing is stuck")
    waiting.kill()
    cancel(gateway, "silent", hangs)
    assert whys("0") == {hangs["id"]: "canceling"}
    doomed = quick.worker(pool="threads")
    pauses, lapses = send(gateway, "ask", "hi"), begun(gateway, "silent", "600")
    doomed.kill()
    waits = send(gateway, "echo", "x", returnImmediately=True)
    found = {hangs["id"]: "canceling", pauses["id"]: "paused", waits["id"]: "unclaimed"}
    eventually(lambda: whys() == found | {lapses["id"]: "lapsed"}, what="each is listed")

    lines = a2a(quick, "list", "--stuck", "--older-than", "1").stdout.splitlines()
    assert lines[0].split() == ["TASK", "AGENT", "RUN", "FOR", "WORKER", "WHY"]
    assert any(re.fullmatch(rf"{waits['id']}  echo +1 +\S+ s +- +no worker began it.*", line) for line in lines)
    assert any(line.startswith("its worker is lost: no watcher recovers it") for line in lines)
    assert whys("1", "--agent", "ask") == {pauses["id"]: "paused"}
    assert len(whys("1", "--limit", "2")) == 2

    quick.watcher()
    eventually(lambda: whys() == found, what="a watcher sees to it")
    assert quick.command("purge", "-f", "-Q", quick.queue).returncode == 0, "else its queue still has the message"
    eventually(
        lambda: [row for row in json_lines(quick, "list", "--stuck", "--older-than", "1") if row["publishedAgain"]],
        what="it is published again",
    )
    assert "published again" in a2a(quick, "list", "--stuck", "--older-than", "1", "--agent", "echo").stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--older-than", "5"), "--older-than needs --stuck"),
        (("--stuck", "--url", "http://x"), "leave out --url"),
        (("--stuck", "-H", "a: b"), "leave out --header"),
        (("--stuck", "--state", "working"), "leave out --state"),
        (("--stuck", "--older-than", "-1"), "--older-than"),
    ],
)
def test_wrong_usage_of_list_is_an_error_with_a_hint(arguments: tuple[str, ...], error: str) -> None:
    result = CliRunner().invoke(commands, ["list", *arguments], obj=SimpleNamespace(app=agents.app))

    assert result.exit_code == 2
    assert error in result.stderr
