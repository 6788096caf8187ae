"""Fleet with signed Celery messages. Messages that are unsigned or signed with another key have no effect."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import redis
from celery import Celery
from kombu import Queue

from tests.support.certificates import signer
from tests.support.clients import message_json, rest
from tests.support.fleet import Fleet, Gateway, Process, free_port, running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind
ON_ONE = pytest.mark.parametrize("broker", ["redis"], indirect=True)
"""Marker for tests whose result does not depend on the broker."""


@dataclass
class Signed:
    """Fleet whose processes sign Celery messages.

    Attributes:
        stranger: Environment of a process that signs with a key which the fleet does not trust.
    """

    fleet: Fleet
    gateway: Gateway
    worker: Process
    stranger: dict[str, str]

    def ask(self, agent: str, text: str = "", *, data: Any = None, gateway: Gateway | None = None) -> dict[str, Any]:
        """Send a message, wait for the end of the turn, and return the task."""
        task: dict[str, Any] = self._send(agent, text, data, gateway or self.gateway, False)
        return task

    def begin(self, agent: str, text: str = "", *, data: Any = None, gateway: Gateway | None = None) -> str:
        """Send a message. Return the task's id without waiting for the turn."""
        task_id: str = self._send(agent, text, data, gateway or self.gateway, True)["id"]
        return task_id

    def state(self, agent: str, task_id: str) -> str:
        task = rest(self.gateway, "GET", f"/tasks/{task_id}", agent=agent).json()
        return str(task["status"]["state"]).removeprefix("TASK_STATE_")

    def comes_to(self, agent: str, task_id: str, state: str) -> None:
        eventually(lambda: self.state(agent, task_id) == state, what=f"{agent} is {state}")

    def _send(self, agent: str, text: str, data: Any, gateway: Gateway, immediately: bool) -> Any:
        body = message_json(text) | {"configuration": {"returnImmediately": immediately}}
        if data is not None:
            body["message"]["parts"] = [{"data": data}]
        answer = rest(gateway, "POST", "/message:send", body, agent=agent)
        assert answer.status_code == 200, answer.text
        return answer.json()["task"]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Signed]:
    folder = tmp_path_factory.mktemp("signed")
    key, certificate = signer(folder, "fleet")
    strange_key, strange_certificate = signer(folder, "stranger")
    trusted = folder / "trusted"
    trusted.mkdir()
    certificate.rename(trusted / certificate.name)
    keys = {
        "TEST_KEY": str(key),
        "TEST_CERTIFICATE": str(trusted / certificate.name),
        "TEST_CERTIFICATES": str(trusted / "*.pem"),
    }
    stranger = {"TEST_KEY": str(strange_key), "TEST_CERTIFICATE": str(strange_certificate)}
    env = keys | {"A2A_REDISPATCH_AFTER": "1", "A2A_CANCEL_GRACE": "2", "TEST_EVENTS": "1"}
    with running_fleet(folder, broker, app="tests.support.signed", **env) as fleet:
        # several processes import the app and load its key, which takes time
        gateway = fleet.gateway(workers=2 if broker == "redis" else 1, wait=False)
        worker = fleet.worker(pool="prefork", concurrency=3, TEST_REMOTE=f"{gateway.url}/agents/echo")
        fleet.watcher()
        gateway.wait_for_output("startup complete")
        yield Signed(fleet, gateway, worker, stranger)


def texts(task: dict[str, Any]) -> list[Any]:
    """Return the contents of the artifacts of a completed task."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return [part.get("text", part.get("data")) for artifact in task["artifacts"] for part in artifact["parts"]]


def test_agents_tasks_retries_canvases_and_calls_run(signed: Signed) -> None:
    assert texts(signed.ask("echo", "hi")) == ["hi"]
    assert texts(signed.ask("shout", "hi")) == ["HI"]
    assert texts(signed.ask("flaky", data={"succeed_at": 2})) == ["attempt 2"]
    for how, value in (("returned chain", 6), ("replaced by group", [3, 7]), ("chord", 10)):
        assert texts(signed.ask("canvas", data={"how": how})) == [value], how
    assert texts(signed.ask("calls", "from Celery")) == ["from Celery"]


@ON_ONE
def test_the_doctor_finds_nothing_wrong(signed: Signed) -> None:
    doctor = signed.fleet.command("a2a", "doctor", "--url", signed.gateway.url)

    assert "nothing wrong" in doctor.stdout, doctor.stderr


def test_cancels_reach_what_waits_and_what_runs(signed: Signed) -> None:
    running = signed.begin("sleeps", data={"seconds": 60})
    signed.comes_to("sleeps", running, "WORKING")

    rest(signed.gateway, "POST", f"/tasks/{running}:cancel", agent="sleeps")

    signed.comes_to("sleeps", running, "CANCELED")
    # Celery's remote control ends the process
    revoked = f"Task tests.support.plain_tasks.sleeps[{running}.1]"
    eventually(lambda: revoked in signed.worker.output(), what="the worker hears of it")


@ON_ONE
def test_a_run_that_a_worker_returns_continues_on_another(signed: Signed) -> None:
    first = signed.begin("steady", "0.2 0.2")
    signed.comes_to("steady", first, "COMPLETED")
    stopping = signed.fleet.worker(pool="threads", concurrency=1)
    signed.worker.signal(signal.SIGSTOP)
    try:
        task = signed.begin("steady", "60 0.2")
        eventually(lambda: f"run {task}.1 of steady begins" in stopping.output(), what="it begins")
    finally:
        signed.worker.signal(signal.SIGCONT)

    stopping.signal(signal.SIGQUIT)

    signed.comes_to("steady", task, "COMPLETED")
    assert f"run {task}.1 is requeued because its worker shuts down" in stopping.output()


@ON_ONE
def test_flower_shows_runs(signed: Signed) -> None:
    port = free_port()
    arguments = ("flower", "--address=127.0.0.1", f"--port={port}")
    signed.fleet.start("flower", *arguments, FLOWER_UNAUTHENTICATED_API="true")

    def page(path: str) -> Any:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=30)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    eventually(lambda: page("/api/workers?refresh=1"), what="Flower knows the workers")
    task_id = signed.begin("echo", "hi")
    info = f"/api/task/info/{task_id}.1"
    eventually(lambda: (page(info) or {}).get("state") == "SUCCESS", what="Flower shows the run")


@ON_ONE
def test_messages_of_a_gateway_with_another_key_are_refused_and_published_again(signed: Signed) -> None:
    gateway = signed.fleet.gateway(**signed.stranger)

    tasks = {agent: signed.begin(agent, "late", gateway=gateway) for agent in ("echo", "shout")}
    for agent, task_id in tasks.items():
        signed.comes_to(agent, task_id, "COMPLETED")
        eventually(lambda t=task_id: f"run {t}.1 published again" in signed.fleet.logs())
    body = httpx.get(f"{gateway.url}/health/ready", timeout=30).json()["workers"]
    gateway.stop()

    assert body.startswith("no worker answered")
    assert signed.worker.running
    assert texts(signed.ask("echo", "goes on")) == ["goes on"]


def test_what_a_stranger_sends_in_a_runs_name_neither_begins_nor_ends_it(signed: Signed) -> None:
    app = Celery(broker=signed.fleet.broker_url, set_as_current=False)
    app.conf.task_queues = [Queue(signed.fleet.queue)]
    signed.worker.signal(signal.SIGSTOP)
    try:
        task = signed.begin("echo", "mine")
        past = {"expires": "2020-01-01T00:00:00+00:00"}
        for name in ("a2a.echo", "a2a.no-such-agent"):
            app.send_task(name, args=(task, 1), task_id=f"{task}.1", queue=signed.fleet.queue, headers=past)
        app.control.revoke(f"{task}.1")
    finally:
        signed.worker.signal(signal.SIGCONT)
        app.close()

    signed.comes_to("echo", task, "COMPLETED")
    eventually(lambda: "for an unknown agent is refused" in signed.worker.output())
    with redis.Redis.from_url(signed.fleet.redis.store_url) as store:
        assert store.hget(f"a2a:{{{task}}}:task", "run") == b"1"
