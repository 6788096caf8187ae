"""Interrupted tasks. Agents ask in different ways, any worker continues with the answer, and questions expire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import LIMIT, eventually

HEADERS = {"A2A-Version": "1.0"}


class Conversation:
    """Client of one agent, in one task."""

    def __init__(self, gateway: Gateway, agent: str) -> None:
        self._url = f"{gateway.url}/agents/{agent}"
        self.task: dict[str, Any] = {}

    def say(self, text: str) -> str:
        """Send a message to the task, or begin the task. Return the state and the text of the status."""
        message: dict[str, Any] = {"messageId": f"m-{text}", "role": "ROLE_USER", "parts": [{"text": text}]}
        if self.task:
            message["taskId"] = self.task["id"]
        answer = httpx.post(f"{self._url}/message:send", json={"message": message}, headers=HEADERS, timeout=LIMIT)
        assert answer.status_code == 200, answer.text
        self.task = answer.json()["task"]
        return self.state_and_text()

    def read(self) -> str:
        """Read the task. Return the state and the text of the status."""
        self.task = httpx.get(f"{self._url}/tasks/{self.task['id']}", headers=HEADERS, timeout=LIMIT).json()
        return self.state_and_text()

    def state_and_text(self) -> str:
        status = self.task["status"]
        parts = status.get("message", {}).get("parts", [])
        return " ".join([status["state"].removeprefix("TASK_STATE_"), *(part["text"] for part in parts)])


@pytest.fixture(scope="module", params=["prefork", "threads"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    with running_fleet(tmp_path_factory.mktemp(request.param)) as fleet:
        fleet.worker(pool=request.param)
        yield fleet, fleet.gateway()


def test_questions_are_asked_one_after_the_other_and_answered_once(site: tuple[Fleet, Gateway]) -> None:
    client = Conversation(site[1], "interview")

    assert client.say("a survey") == "INPUT_REQUIRED Name?"
    assert client.say("Ada") == "INPUT_REQUIRED Where do you live, Ada?"
    assert client.say("London") == "INPUT_REQUIRED Colour? red or blue"
    assert client.say("blue") == "COMPLETED"

    data = client.task["artifacts"][0]["parts"][0]["data"]
    assert data["about"] == "a survey"
    assert data["answers"] == ["Ada", "London", "blue"]
    assert data["last"] == "m-blue"
    texts = [part["text"] for message in client.task["history"] for part in message["parts"]]
    assert texts == [
        *("a survey", "Name?", "Ada", "Where do you live, Ada?", "London", "Colour?", "red or blue", "blue")
    ]


def test_a_plain_function_asks_too(site: tuple[Fleet, Gateway]) -> None:
    client = Conversation(site[1], "sync-interview")

    assert [client.say(text) for text in ("go", "1", "2")] == [
        "INPUT_REQUIRED One?",
        "INPUT_REQUIRED Two?",
        "COMPLETED",
    ]
    assert client.task["artifacts"][0]["parts"] == [{"text": "1 and 2"}]


def test_a_question_raised_in_another_way_begins_anew(site: tuple[Fleet, Gateway]) -> None:
    client = Conversation(site[1], "moody")

    assert [client.say(text) for text in ("begin", "one", "continue", "two")] == [
        "INPUT_REQUIRED First?",
        "INPUT_REQUIRED Say continue.",
        "INPUT_REQUIRED Again?",
        "COMPLETED",
    ]
    assert client.task["artifacts"][0]["parts"] == [{"text": "continue: two"}]


def test_an_answer_reaches_another_worker_after_the_loss_of_the_first(fleet: Fleet) -> None:
    gateway, first = fleet.gateway(), fleet.worker()
    client = Conversation(gateway, "interview")
    assert client.say("a survey") == "INPUT_REQUIRED Name?"
    first.kill()
    fleet.worker()

    assert [client.say(text) for text in ("Ada", "London", "red")][-1] == "COMPLETED"
    assert client.task["artifacts"][0]["parts"][0]["data"]["answers"] == ["Ada", "London", "red"]


def test_an_unanswered_pause_ends(fleet: Fleet) -> None:
    fleet.worker(A2A_INPUT_TIMEOUT="1")
    gateway = fleet.gateway()
    client, second_client = Conversation(gateway, "ask"), Conversation(gateway, "interview")
    assert client.say("hello") == "INPUT_REQUIRED How many?"
    assert second_client.say("a survey") == "INPUT_REQUIRED Name?"
    second_client.say("Ada")
    fleet.watcher()
    fleet.watcher()

    eventually(lambda: client.read() == "FAILED The client did not answer in time.", what="the pause ends")
    eventually(
        lambda: second_client.read() == "FAILED The client did not answer in time.", what="the other pause ends too"
    )
    assert [message["role"] for message in client.task["history"]] == ["ROLE_USER", "ROLE_AGENT"]


def test_a_task_that_waits_for_ever_does(fleet: Fleet) -> None:
    fleet.worker()
    gateway = fleet.gateway()
    watcher = fleet.watcher()
    client = Conversation(gateway, "ask")
    client.say("hello")

    assert fleet.redis.process is not None
    assert watcher.is_running
    assert client.read() == "INPUT_REQUIRED How many?"
    assert client.say("3") == "COMPLETED"
