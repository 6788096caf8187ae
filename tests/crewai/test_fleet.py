"""Crews on real workers that are killed. No finished call is repeated, and a second worker continues after the answer
to a question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_cancel import IGNORED
from tests.acceptance.test_durable_steps import wait_until_reached
from tests.support.agents.booking_agents import BookingAgent, Client, book_over
from tests.support.agents.durable_agents import lines
from tests.support.clients.bindings import BINDINGS
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Process, running_fleet
from tests.support.waiting import eventually

from .fleet_app import ANSWER, ROUNDS, STOPS

APP = "tests.crewai.fleet_app"
CLERK = BookingAgent("crewai", lambda asked, agreed: {"data": agreed})


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_calls_on_workers_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str) -> None:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    env = {"A2A_LEASE_TTL": "10", "A2A_REDISPATCH_AFTER": "3", "TEST_FOLDER": str(tmp_path)}
    with running_fleet(tmp_path, "redis", app=APP, **env) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        worker = fleet.worker(pool=pool, concurrency=2)
        task = send(gateway, "weather", "weather", returnImmediately=True)
        for number in STOPS:
            wait_until_reached(tmp_path, f"crewai.before-{number}")
            worker.kill()
            worker = fleet.worker(pool=pool, concurrency=2)
        eventually(lambda: state(read(gateway, "weather", task)) not in ("SUBMITTED", "WORKING"), what="the task ends")

        final_task = read(gateway, "weather", task)
        assert state(final_task) == "COMPLETED", final_task
        assert [
            "".join(part.get("text", "") for part in artifact["parts"]) for artifact in final_task["artifacts"]
        ] == [ANSWER]
        assert lines("crewai", "questions") == [str(number) for number in range(len(ROUNDS) + 1)]
        assert sorted(lines("crewai", "looked-up")) == ["a", "b", "c", "d", "e"]
        assert len(set(lines("crewai", "keys"))) == 5


def test_feedback_reaches_another_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    with running_fleet(tmp_path, "redis", app=APP, TEST_FOLDER=str(tmp_path)) as fleet:
        client = Client(fleet.gateway(), BookingAgent("essay", lambda asked, agreed: {"text": "yes"}))
        worker = fleet.worker(pool="prefork", concurrency=2)
        for feedback, output in (("write", "good"), ("shorter", "better")):
            status = client.say(feedback) if not client.task else client.reply({"text": feedback})
            assert (status, client.question["data"]["taskOutput"]["output"]) == ("INPUT_REQUIRED", output)
            worker.kill()
            worker = fleet.worker(pool="threads", concurrency=2)

        assert client.agree() == "COMPLETED better"
        assert len(lines("essay", "questions")) == 2, "no question is asked twice"


class Office:
    """Fleet in which the sample agent has asked a question. The worker that asked was killed, and another worker
    runs."""

    def __init__(self, fleet: Fleet) -> None:
        self.gateway = fleet.gateway(grpc=True)
        first = fleet.worker(pool="prefork", concurrency=2)
        self.waiting = self.client()
        self.first_results = self.waiting.say("hello"), self.waiting.say("book a table")
        first.kill()
        self.worker: Process = fleet.worker(pool="threads", concurrency=4)

    def client(self) -> Client:
        return Client(self.gateway, CLERK)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with running_fleet(tmp_path_factory.mktemp("office"), app="workers.app") as fleet:
        yield Office(fleet)


def test_what_was_asked_on_a_worker_that_died_is_answered_on_another(office: Office) -> None:
    client = office.waiting
    assert office.first_results == ("COMPLETED You said: hello.", "INPUT_REQUIRED")
    with pytest.raises(AssertionError, match=r"message\.parts"):
        client.reply({"text": "maybe"})

    assert client.agree() == "COMPLETED Done: a table is booked."
    assert client.say("and now?") == "COMPLETED You said: hello; book a table; and now?."


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_question_is_answered_over_each_binding(office: Office, binding: str) -> None:
    assert await book_over(office.gateway, CLERK, binding) == "Done: a table is booked."


def test_nothing_is_booked_without_its_client(office: Office) -> None:
    client = office.client()
    assert client.say("book a flight") == "INPUT_REQUIRED"

    assert client.agree(False) == "COMPLETED Done: nothing is booked."


def test_a_cancel_stops_it_and_the_conversation_goes_on_without_that_turn(office: Office) -> None:
    client = office.client()
    client.say("hello")
    client.say("wait", returnImmediately=True)
    eventually(lambda: client.read() == "WORKING", what="the task is WORKING")

    assert client.cancel() == "CANCELED"

    assert client.say("there?") == "COMPLETED You said: hello; there?."
    assert IGNORED not in office.worker.output()


def test_a_question_waits_while_the_context_goes_on(office: Office) -> None:
    client = office.client()
    client.say("book a room")
    waiting = client.task

    assert client.say("hello") == "COMPLETED You said: hello."
    client.task = waiting
    assert client.agree() == "COMPLETED Done: a room is booked."


def test_a_worker_with_a_crew_stops_at_a_signal(office: Office) -> None:
    assert office.client().say("hello") == "COMPLETED You said: hello."

    assert office.worker.stop() == 0
