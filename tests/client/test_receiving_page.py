"""Code and numbers in docs/webhooks-receiving.md. The code runs unchanged, and the numbers equal those of
a2a_celery."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import Artifact, Part, SendMessageRequest, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState
from google.protobuf.json_format import Parse

from a2a_celery.client import notifications, receiver
from a2a_celery.client.notifications import Notification
from tests.support.processes.serving import serve_app
from tests.support.receivers.webhooks import OTHER_SECRET, SECRET, Post, post, status_event

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "webhooks-receiving.md").read_text(encoding="utf-8")


def code(section: str, celery: str = "") -> dict[str, Any]:
    """Run the only program of a section with `celery` as its app, and return the names that it defines."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = program.replace('Celery("service")', celery)
    namespace: dict[str, Any] = {"__name__": "service"}
    exec(compile(program, "webhooks-receiving.md", "exec"), namespace)
    return namespace


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variable that the programs read."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)


async def answers(app: Any, *posts: Post) -> list[int]:
    """Send posts to the documented URL and return the statuses of the responses."""
    async with serve_app(app) as url, httpx.AsyncClient() as http:
        return [
            (await http.post(f"{url}/a2a-events", headers=signed_post.headers, content=signed_post.body)).status_code
            for signed_post in posts
        ]


async def test_the_application_stores_reports() -> None:
    service = code("A web application in a few lines")

    def chunk(text: str, artifact_id: str = "a", *, append: bool = True) -> StreamResponse:
        artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)])
        update = TaskArtifactUpdateEvent(task_id="t1", artifact=artifact, append=append)
        return StreamResponse(artifact_update=update)

    chunks = [chunk("draft", append=False), chunk("All ", append=False), chunk("is well."), chunk("A plan.", "b")]
    events = [post(number, event=event) for number, event in enumerate(chunks, 2)]
    statuses = await answers(service["app"], post(1), *events, post(2, secrets=(OTHER_SECRET,)))
    assert statuses == [204] * 5 + [401]
    assert service["reports"] == {("t1", "a"): "All is well.", ("t1", "b"): "A plan."}

    complete_task = Task(id="t1", artifacts=[Artifact(artifact_id="a", parts=[Part(text="Anew.")])])
    assert await answers(service["app"], post(6, event=StreamResponse(task=complete_task))) == [204]
    assert service["reports"]["t1", "a"] == "Anew."


async def test_the_route_stores_states() -> None:
    service = code("A route of your own")
    end_post = post(2, event=status_event("t1", TaskState.TASK_STATE_COMPLETED))

    statuses = await answers(service["app"], end_post, post(1), post(3, secrets=(OTHER_SECRET,)))

    assert statuses == [204, 204, 401]
    assert service["states"] == {"t1": TaskState.TASK_STATE_COMPLETED}, "the older status came late and is dropped"


def test_the_handler_for_workers_is_a_task_that_reads_what_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    service = code("Events for Celery workers", 'Celery("service", broker="memory://", set_as_current=False)')

    service["on_event"](Notification("l_1", "l", 1, 1, Task(id="t1")).to_dict())

    assert "t1" in capsys.readouterr().out
    assert service["app"].routes


def test_the_request_that_asks_for_notifications_is_one() -> None:
    [request] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

    message_request = Parse(request, SendMessageRequest())  # fails for fields that are not in the specification

    assert message_request.configuration.task_push_notification_config.url == "https://you.example.com/a2a-events"


def test_its_numbers_are_the_codes() -> None:
    assert f"`time_limit` ({receiver.TIME_LIMIT:.0f} s)" in PAGE
    assert f"over {notifications.MAX_BYTES // 2**20} MiB" in PAGE
    assert "not older than five minutes" in PAGE
    assert notifications.TOLERANCE == 5 * 60
