"""``a2a doctor`` on real fleets, both healthy and misconfigured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import talk
from tests.support.fleet import Fleet, running_fleet
from tests.support.receiver import receiver
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"
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
    with running_fleet(tmp_path, app="tests.support.cancels", A2A_CANCEL_GRACE="1") as fleet:
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
    assert "has no A2A_SECRET_KEY, so it delivers nothing" in undelivered_result[1]
    assert "wrong  secret key: A2A_SECRET_KEY is not set here" in gateway_without_key[1]
    assert "note   webhooks: 1 failing now" in failing_result
    assert "note   webhooks: 1 given up: celery -A … a2a deliveries list --dead" in failing_result
    assert "replay --all" in failing_result
