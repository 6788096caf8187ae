"""Fleet of agents, and a Celery app that calls the agents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from a2a_celery.client.calling import CallTask, call_task
from tests.support.clients.bindings import base_url, rest
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import LIMIT, eventually

APP = "tests.support.agents.callers"


@dataclass
class Callers:
    """Fleet of agents, and an app with which the test publishes steps and reads results."""

    fleet: Fleet
    gateway: Gateway
    app: Celery
    call: CallTask
    queue: str

    def worker(self, *, pool: str = "prefork", concurrency: int = 1, **env: str) -> Process:
        """Start a worker that calls agents."""
        return self.fleet.worker(pool=pool, concurrency=concurrency, app=APP, **{**self.env, **env})

    def receiver(self, url: str) -> Process:
        """Start the app's webhook receiver on the port of `url`."""
        port = url.rpartition(":")[2].partition("/")[0]
        command = [sys.executable, "-m", "uvicorn", f"{APP}:receiver", "--port", port]
        log = self.fleet.folder / "receiver.log"
        process = Process("receiver", command, {**self.gateway.env, **self.env, "TEST_WEBHOOK": url}, log)
        self.fleet.processes.append(process)
        process.wait_for_output("Uvicorn running on")
        return process

    def url(self, agent: str, gateway: Gateway | None = None) -> str:
        """Return the URL of an agent."""
        return base_url(gateway or self.gateway, agent)

    @property
    def env(self) -> dict[str, str]:
        return {"TEST_CALL_QUEUE": self.queue, "TEST_REMOTE": self.url("echo")}

    def step(self, task: str, *args: Any, **kwargs: Any) -> Any:
        """Return a signature of the app's task with this name."""
        return self.app.signature(f"{APP}.{task}", args=args, kwargs=kwargs)

    def tasks(self, agent: str) -> list[dict[str, Any]]:
        """Return all tasks of an agent."""
        tasks: list[dict[str, Any]] = rest(self.gateway, "GET", "/tasks?pageSize=100", agent=agent).json()["tasks"]
        return tasks

    def states(self, agent: str) -> list[str]:
        """Return the states of all tasks of an agent."""
        return [task["status"]["state"].removeprefix("TASK_STATE_") for task in self.tasks(agent)]

    def waits(self, result: AsyncResult) -> None:
        """Wait until Celery has scheduled the next poll of the step."""
        eventually(lambda: result.state == "RETRY", what="the step waits")


def text_of(result: AsyncResult) -> str:
    """Wait for the result of a step and return the agent's text."""
    text: str = result.get(timeout=LIMIT)["text"]
    return text


@contextmanager
def running_callers(folder: Path, broker: str, *, agents: bool = True, **env: str) -> Iterator[Callers]:
    """Run a gateway and, if `agents` is true, a worker with eight threads that executes the agents. The test starts the
    workers that call the agents."""
    with running_fleet(folder, broker, **env) as fleet:
        gateway = fleet.gateway()
        if agents:
            fleet.worker(pool="threads", concurrency=8)
        app = Celery("callers", broker=fleet.broker_url, backend=fleet.redis.broker_url, set_as_current=False)
        queue = f"{fleet.queue}-calls"
        fleet.queues.append(queue)
        app.conf.task_default_queue = queue
        call = call_task(app, remotes={"echo": "http://127.0.0.1:1"})  # workers have a different address for "echo"
        try:
            yield Callers(fleet, gateway, app, call, queue)
        finally:
            app.close()
