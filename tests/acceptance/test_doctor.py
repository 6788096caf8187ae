"""``a2a doctor`` on real fleets, both healthy and misconfigured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from a2a_celery import A2A
from a2a_celery.cli.doctor.checks import diagnosis
from a2a_celery.cli.doctor.survey import survey
from a2a_celery.lifecycle.references import quote_key_part
from a2a_celery.store import Keys
from tests.support import ROOT
from tests.support.clients import talk
from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.processes.restarts import mortal_redis
from tests.support.receivers.receiver import receiver
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"
SHOP = """
import os

from celery import Celery
from a2a_celery import A2A

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"], backend=os.environ["TEST_RESULTS"])
app.conf.task_default_queue = os.environ["TEST_QUEUE"]


@app.task(name="shop.bulk")
def bulk(count: int) -> int:
    return count


a2a = A2A(app)
a2a.expose(bulk, name="bulk")
"""
ORDER = (
    "ok     store: Redis ",
    "ok     broker: reached",
    ": prefork, consumes ",
    "ok     watchers: ",
    ": enforces cancellation",
    "ok     settings: ",
    "ok     clock: ",
)


def doctor(fleet: Fleet, *arguments: str, **env: str) -> tuple[int, str]:
    """Run ``a2a doctor``. Return the exit code and the output."""
    result = fleet.command("a2a", "doctor", *arguments, **env)
    assert "Traceback" not in result.stdout + result.stderr
    return result.returncode, result.stdout + result.stderr


@pytest.mark.each_kind
def test_a_healthy_fleet_has_no_problems(tmp_path: Path, broker: str) -> None:
    with running_fleet(tmp_path, broker, TEST_ALONE="1") as fleet:
        fleet.worker()
        fleet.watcher()
        gateway = fleet.gateway()

        code, output = doctor(fleet, "--url", gateway.url)

    assert code == 0, output
    for line in (*ORDER, f"ok     gateway: {gateway.url} is ready"):
        assert line in output
    assert "nothing wrong" in output


def test_an_unhealthy_fleet_is_reported(tmp_path: Path) -> None:
    with running_fleet(tmp_path, app="tests.support.agents.cancels", A2A_CANCEL_GRACE="1") as fleet:
        worker = fleet.worker(pool="threads", A2A_LEASE_TTL="3")
        gateway = fleet.gateway()
        task = talk.send(gateway, "deaf-function", str(tmp_path / "marks"), returnImmediately=True)
        eventually((tmp_path / "marks").exists, what="the task is WORKING")
        assert talk.state(talk.cancel_task(gateway, "deaf-function", task)) == "CANCELED"
        worker.wait_for_output("is abandoned")

        code, output = doctor(fleet, "--url", f"http://{NOWHERE}")

    assert code == 1
    assert "cannot enforce cancellation on the pool threads" in output
    assert f"still run: {task['id']}.1" in output
    assert "A2A_LEASE_TTL is 3.0 there, and 15.0 here" in output
    assert "wrong  watchers: no watcher runs" in output
    assert f"wrong  gateway: no gateway at http://{NOWHERE}" in output


def test_unreachable_servers_are_reported(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        worker = fleet.worker(A2A_STORE_URL=f"redis://{NOWHERE}/0")
        storeless_result = doctor(fleet, A2A_STORE_URL=f"redis://{NOWHERE}/1")
        fleet_result = doctor(fleet)
        worker.stop()
        workerless_result = doctor(fleet)
        brokerless_result = doctor(fleet, CELERY_BROKER_URL=f"redis://{NOWHERE}/0")

    assert [code for code, _ in (storeless_result, fleet_result, workerless_result, brokerless_result)] == [1, 1, 1, 1]
    assert "wrong  store: ConnectionError" in storeless_result[1]
    assert "cannot reach the store" in fleet_result[1]
    assert "wrong  workers: no worker replies" in workerless_result[1]
    assert "wrong  broker: " in brokerless_result[1]


@pytest.mark.parametrize(
    ("command", "check", "text"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), "store", "A2A_STORE_URL names a read-only replica: name the primary."),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), "store", "NOREPLICAS"),
        (("HSET", Keys().installation, "schema", "99"), "start", "the store has schema 99 of a newer release"),
    ],
)
def test_a_store_that_processes_cannot_use_is_reported(
    tmp_path: Path, command: tuple[str, ...], check: str, text: str
) -> None:
    with mortal_redis(tmp_path) as server, redis.Redis.from_url(server.store_url) as client:
        client.execute_command(*command)
        app = Celery("tests", broker="memory://localhost", set_as_current=False)
        app.conf.a2a_store_url = server.store_url

        findings = diagnosis(survey(A2A(app), f"http://{NOWHERE}", timeout=0.1))

    problems = [finding for finding in findings if finding.level == "wrong" and finding.check == check]
    assert text in str(problems)
    assert [finding.text for finding in findings if finding.check == "watchers"] == [] or check == "start"


def test_failing_webhooks_are_reported(tmp_path: Path) -> None:
    env = {"A2A_SECRET_KEY": "a-key-for-the-tests-of-32-characters-and-more", "A2A_ALLOW_NETWORKS": "127.0.0.0/8"}
    with running_fleet(tmp_path, **env) as fleet, receiver() as hooks:
        hooks.plan("/failing", [], then=500)
        hooks.plan("/gone", [], then=410)
        gateway = fleet.gateway()
        fleet.worker()
        keyless_watcher = fleet.watcher(A2A_SECRET_KEY="")
        for path in ("/failing", "/gone"):
            talk.send(gateway, "echo", taskPushNotificationConfig={"url": hooks.url(path)})
        undelivered_result = doctor(fleet, "--url", gateway.url)
        gateway_without_key = doctor(fleet, "--url", gateway.url, A2A_SECRET_KEY="")
        keyless_watcher.stop()
        fleet.watcher()
        hooks.wait_for("/failing", 2)
        hooks.wait_for("/gone", 1)
        failing_result = eventually(
            lambda: output if "given up" in (output := doctor(fleet, "--url", gateway.url)[1]) else "",
            what="one is given up",
        )

    assert (undelivered_result[0], gateway_without_key[0]) == (1, 1)
    assert "has no A2A_SECRET_KEY, so deliveries to webhooks fail" in undelivered_result[1]
    assert "wrong  start: no gateway with the settings of this command starts: a2a_secret_key" in gateway_without_key[1]
    assert "note   webhooks: 1 failing now" in failing_result
    assert "note   webhooks: 1 given up: celery -A … a2a deliveries list --dead" in failing_result
    assert "replay --all" in failing_result


def test_a_backlog_and_questions_near_their_end_are_reported(tmp_path: Path) -> None:
    with running_fleet(tmp_path, TEST_ALONE="1", A2A_OPERATORS="*", A2A_INPUT_TIMEOUT="7200") as fleet:
        fleet.watcher()
        gateway = fleet.gateway()
        fleet.worker(pool="threads", concurrency=1)
        questions = [talk.send(gateway, "ask", "begin") for _ in range(3)]
        assert {talk.state(task) for task in questions} == {"INPUT_REQUIRED"}
        running = talk.send(gateway, "silent", returnImmediately=True)
        eventually(lambda: talk.state(talk.read(gateway, "silent", running)) == "WORKING", what="the slot is occupied")
        waiting = [talk.send(gateway, "echo", returnImmediately=True) for _ in range(3)]
        make_older(fleet, waiting, 11 * 60)
        make_older(fleet, questions[:2], 3 * 1800)

        code, output = doctor(fleet, "--url", gateway.url)
        talk.cancel(gateway, "silent", running)

    lines = " ".join(output.split())
    assert code == 0, output
    assert ": 3 runs wait, the oldest for 11 min" in lines
    assert "for 1 slot: add workers" in lines
    assert "note questions: 2 of 3 tasks that wait for an answer fail within the hour" in lines
    assert "note operators: A2A_OPERATORS contains *" in lines


def make_older(fleet: Fleet, tasks: list[dict[str, Any]], seconds: int) -> None:
    """Move the times of `tasks` into the past, and the ends of their pauses nearer."""
    keys, by_us = Keys(), seconds * 1_000_000
    with redis.Redis.from_url(fleet.redis.store_url) as store:
        for task in tasks:
            record = keys.task(task["id"]).record
            for name in ("at", "entered_at"):
                if at := store.hget(record, name):
                    store.hset(record, name, int(at) - by_us)
            if store.zscore(keys.pauses, quote_key_part(task["id"])) is not None:
                store.zincrby(keys.pauses, -by_us, quote_key_part(task["id"]))


def test_a_worker_without_this_package_serves_an_exposed_task(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop_without_a2a.py").write_text(SHOP.partition("a2a = ")[0].replace("from a2a_celery import A2A", ""))
    with running_fleet(tmp_path, app="shop", PYTHONPATH=f"{tmp_path}:{ROOT}") as fleet:
        workers = [fleet.worker(app="shop_without_a2a", **env) for env in ({}, {"TEST_QUEUE": f"{fleet.queue}-other"})]
        _, output = doctor(fleet)
        logs = "".join(worker.output() for worker in workers)

    assert "wrong  agent" not in output
    assert "ok     agents: 1 of 1 have workers" in output
    assert "has the exposed tasks bulk." in output
    [line] = [line for line in output.splitlines() if "do not claim runs" in line]
    assert "worker-0-" in line
    assert "worker-1-" not in line
    assert "pidbox command error" not in logs
