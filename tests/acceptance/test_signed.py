"""Fleet with signed Celery messages. Messages that are unsigned or signed with a different key have no effect."""

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
from tests.support.clients.bindings import message_json, rest
from tests.support.processes.fleet import Fleet, Gateway, Process, free_port, running_fleet
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.each_kind
ON_ONE = pytest.mark.parametrize("broker", ["redis"], indirect=True)
"""Marker for tests whose result does not depend on the broker."""


@dataclass
class SigningFleet:
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
def signing_fleet(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[SigningFleet]:
    folder = tmp_path_factory.mktemp("signed")
    key, certificate = signer(folder, "fleet")
    strange_key, strange_certificate = signer(folder, "stranger")
    trusted_folder = folder / "trusted"
    trusted_folder.mkdir()
    certificate.rename(trusted_folder / certificate.name)
    keys = {
        "TEST_KEY": str(key),
        "TEST_CERTIFICATE": str(trusted_folder / certificate.name),
        "TEST_CERTIFICATES": str(trusted_folder / "*.pem"),
    }
    stranger = {"TEST_KEY": str(strange_key), "TEST_CERTIFICATE": str(strange_certificate)}
    env = keys | {"A2A_REDISPATCH_AFTER": "1", "A2A_CANCEL_GRACE": "2", "TEST_EVENTS": "1"}
    with running_fleet(folder, broker, app="tests.support.agents.signing_app", **env) as fleet:
        # several processes import the app and load its key, which takes time
        gateway = fleet.gateway(workers=2 if broker == "redis" else 1, wait=False)
        worker = fleet.worker(pool="prefork", concurrency=3, TEST_REMOTE=f"{gateway.url}/agents/echo")
        fleet.watcher()
        eventually(lambda: fleet.is_serving(gateway), what="the gateway serves")
        yield SigningFleet(fleet, gateway, worker, stranger)


def texts(task: dict[str, Any]) -> list[Any]:
    """Return the contents of the artifacts of a completed task."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return [part.get("text", part.get("data")) for artifact in task["artifacts"] for part in artifact["parts"]]


def test_agents_tasks_retries_canvases_and_calls_run(signing_fleet: SigningFleet) -> None:
    assert texts(signing_fleet.ask("echo", "hi")) == ["hi"]
    assert texts(signing_fleet.ask("shout", "hi")) == ["HI"]
    assert texts(signing_fleet.ask("flaky", data={"succeed_at": 2})) == ["attempt 2"]
    for kind, value in (("returned chain", 6), ("replaced by group", [3, 7]), ("chord", 10)):
        assert texts(signing_fleet.ask("canvas", data={"how": kind})) == [value], kind
    assert texts(signing_fleet.ask("calls", "from Celery")) == ["from Celery"]


@ON_ONE
def test_the_doctor_finds_nothing_wrong(signing_fleet: SigningFleet) -> None:
    doctor = signing_fleet.fleet.command("a2a", "doctor", "--url", signing_fleet.gateway.url)

    assert "nothing wrong" in doctor.stdout, doctor.stderr


def test_cancels_reach_what_waits_and_what_runs(signing_fleet: SigningFleet) -> None:
    running_id = signing_fleet.begin("sleeps", data={"seconds": 60})
    signing_fleet.comes_to("sleeps", running_id, "WORKING")

    rest(signing_fleet.gateway, "POST", f"/tasks/{running_id}:cancel", agent="sleeps")

    signing_fleet.comes_to("sleeps", running_id, "CANCELED")
    # Celery's remote control ends the process
    revoke_line = f"Task tests.support.agents.plain_tasks.sleeps[{running_id}.1]"
    eventually(lambda: revoke_line in signing_fleet.worker.output(), what="the worker is notified")


@ON_ONE
def test_a_run_that_a_worker_returns_continues_on_another(signing_fleet: SigningFleet) -> None:
    first = signing_fleet.begin("steady", "0.2 0.2")
    signing_fleet.comes_to("steady", first, "COMPLETED")
    stopping_worker = signing_fleet.fleet.worker(pool="threads", concurrency=1)
    signing_fleet.worker.signal(signal.SIGSTOP)
    try:
        task = signing_fleet.begin("steady", "60 0.2")
        eventually(lambda: f"run {task}.1 of steady begins" in stopping_worker.output(), what="the run begins")
    finally:
        signing_fleet.worker.signal(signal.SIGCONT)

    stopping_worker.signal(signal.SIGQUIT)

    signing_fleet.comes_to("steady", task, "COMPLETED")
    assert f"run {task}.1 is requeued because its worker shuts down" in stopping_worker.output()


@ON_ONE
def test_flower_shows_runs(signing_fleet: SigningFleet) -> None:
    port = free_port()
    arguments = ("flower", "--address=127.0.0.1", f"--port={port}")
    signing_fleet.fleet.start("flower", *arguments, FLOWER_UNAUTHENTICATED_API="true")

    def page(path: str) -> Any:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=LIMIT)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    eventually(lambda: page("/api/workers?refresh=1"), what="Flower knows the workers")
    task_id = signing_fleet.begin("echo", "hi")
    info = f"/api/task/info/{task_id}.1"
    eventually(lambda: (page(info) or {}).get("state") == "SUCCESS", what="Flower shows the run")


@ON_ONE
def test_messages_of_a_gateway_with_another_key_are_refused_and_published_again(signing_fleet: SigningFleet) -> None:
    gateway = signing_fleet.fleet.gateway(**signing_fleet.stranger)

    tasks = {agent: signing_fleet.begin(agent, "late", gateway=gateway) for agent in ("echo", "shout")}
    for agent, task_id in tasks.items():
        signing_fleet.comes_to(agent, task_id, "COMPLETED")
        eventually(lambda t=task_id: f"run {t}.1 published again" in signing_fleet.fleet.logs())
    body = httpx.get(f"{gateway.url}/health/ready", timeout=LIMIT).json()["workers"]
    gateway.stop()

    assert body.startswith("no worker answered")
    assert signing_fleet.worker.is_running
    assert texts(signing_fleet.ask("echo", "goes on")) == ["goes on"]


def test_an_unsigned_message_neither_starts_nor_ends_a_run(signing_fleet: SigningFleet) -> None:
    app = Celery(broker=signing_fleet.fleet.broker_url, set_as_current=False)
    app.conf.task_queues = [Queue(signing_fleet.fleet.queue)]
    signing_fleet.worker.signal(signal.SIGSTOP)
    try:
        task = signing_fleet.begin("echo", "mine")
        past = {"expires": "2020-01-01T00:00:00+00:00"}
        for name in ("a2a.echo", "a2a.no-such-agent"):
            app.send_task(name, args=(task, 1), task_id=f"{task}.1", queue=signing_fleet.fleet.queue, headers=past)
        app.control.revoke(f"{task}.1")
    finally:
        signing_fleet.worker.signal(signal.SIGCONT)
        app.close()

    signing_fleet.comes_to("echo", task, "COMPLETED")
    eventually(lambda: "for an unknown agent is refused" in signing_fleet.worker.output())
    with redis.Redis.from_url(signing_fleet.fleet.redis.store_url) as store:
        assert store.hget(f"a2a:{{{task}}}:task", "run") == b"1"
