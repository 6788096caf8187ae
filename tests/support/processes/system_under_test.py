"""Fleet with one worker and a receiver of Celery's events, for tests of the outcomes of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2a.types import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from celery import Celery
from celery.result import AsyncResult

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import message_json, rest
from tests.support.processes.consumers import stop_consuming
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.receivers.celery_events import CeleryEvents, celery_events
from tests.support.waiting import eventually


@dataclass
class SystemUnderTest:
    """Gateway, worker and receiver of Celery's events."""

    fleet: Fleet
    gateway: Gateway
    worker: Process
    pool: str
    celery: Celery
    events: CeleryEvents
    store: SyncStore

    def send(self, agent: str, text: str = "", *, data: Any = None, task_id: str = "") -> str:
        """Send a message, and return the task's id without waiting for the task."""
        body = message_json(text) | {"configuration": {"returnImmediately": True}}
        if data is not None:
            body["message"]["parts"] = [{"data": data}]
        if task_id:
            body["message"]["taskId"] = task_id
        return self.send_body(agent, body)

    def send_body(self, agent: str, body: dict[str, Any]) -> str:
        """Send a SendMessage request and return the task's id."""
        task_id: str = rest(self.gateway, "POST", "/message:send", body, agent=agent).json()["task"]["id"]
        return task_id

    def log(self, task_id: str) -> list[str]:
        """Return the states in the task's log, and "artifact" for each sequence of artifact updates."""
        changes: list[str] = []
        for entry in self.store.run(read_log(Keys("a2a"), task_id, 0, limit=1000)).entries:
            match entry.event:
                case Task() | TaskStatusUpdateEvent():
                    changes.append(TaskState.Name(entry.event.status.state).removeprefix("TASK_STATE_"))
                case TaskArtifactUpdateEvent() if changes[-1:] != ["artifact"]:
                    changes.append("artifact")
        return changes

    def is_in(self, task_id: str, *states: str) -> bool:
        """Return True if the task's current state is one of `states`."""
        return [change for change in self.log(task_id) if change != "artifact"][-1] in states

    def wait_for_end(self, agent: str, task_id: str) -> dict[str, Any]:
        """Wait until the task is terminal or interrupted, and return the task from the gateway."""
        ends = ("COMPLETED", "FAILED", "CANCELED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED")
        eventually(lambda: self.is_in(task_id, *ends), what=f"{agent} ends")
        task: dict[str, Any] = rest(self.gateway, "GET", f"/tasks/{task_id}", agent=agent).json()
        return task

    def require_celery_events(self, task_id: str, *ends: str) -> None:
        """Require that exactly the final events or retries `ends` were reported for the task's first run."""
        name = f"{task_id}.1"
        eventually(lambda: len(self.events.ends_of(name)) >= len(ends), what=f"Celery reports {ends}")
        assert self.events.ends_of(name) == list(ends), self.events.ends_of(name)

    def require_working(self) -> None:
        """Require that the worker still runs tasks."""
        task_id = self.send("echo", "still here")
        assert text_of(self.wait_for_end("echo", task_id)) is None
        assert self.log(task_id) == ["SUBMITTED", "WORKING", "artifact", "COMPLETED"]

    @contextmanager
    def pause_consumer(self) -> Iterator[None]:
        """Stop the worker's consumer while the block runs."""
        ping = self.celery.control.ping
        eventually(
            lambda: ping(self.worker_options["destination"]), what="gevent reads commands only after it is ready"
        )
        stop_consuming(self.celery, self.worker_options["destination"][0], self.fleet.queue)
        yield
        assert self.celery.control.add_consumer(self.fleet.queue, **self.worker_options)

    @property
    def worker_options(self) -> dict[str, Any]:
        """Options of a control command to this worker that waits for a reply."""
        return {"destination": [self.fleet.node_name(self.worker)], "reply": True, "timeout": 30}

    def result(self, task_id: str, run: int = 1) -> AsyncResult:
        """Return the Celery result of a run."""
        return self.celery.AsyncResult(f"{task_id}.{run}")

    def revoke(self, task_id: str) -> None:
        """Revoke the first run, and wait for the worker's reply."""
        assert self.celery.control.revoke(f"{task_id}.1", **self.worker_options)

    def revoked_in_worker(self) -> list[str]:
        """Return the ids of the Celery tasks that the worker has recorded as revoked."""
        replies = self.celery.control.inspect(self.worker_options["destination"]).revoked() or {}
        return [celery_id for ids in replies.values() for celery_id in ids]


@contextmanager
def running_system(
    folder: Path, pool: str, broker: str = "redis", *, concurrency: int = 2, **env: str
) -> Iterator[SystemUnderTest]:
    """Run a system under test."""
    options = {"app": "tests.support.agents.endings", "TEST_EVENTS": "1", **env}
    with running_fleet(folder, broker, **options) as fleet, celery_events(fleet.broker_url) as events:
        app = Celery(broker=fleet.broker_url, backend=fleet.redis.broker_url, set_as_current=False)
        gateway = fleet.gateway(TEST_GHOST="1")
        worker = fleet.worker(pool=pool, concurrency=concurrency)
        store = SyncStore(fleet.redis.store_url)
        try:
            yield SystemUnderTest(fleet, gateway, worker, pool, app, events, store)
        finally:
            store.close()
            app.close()


def text_of(task: dict[str, Any]) -> str | None:
    """Return the text of the status message, or None if the status has no message."""
    message = task["status"].get("message")
    return message["parts"][0]["text"] if message else None
