"""Scenarios that must have the same results in the test kit's simulation and on a real fleet."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from a2a.types import StreamResponse
from a2a.utils.errors import A2AError

from a2a_celery.client import Result
from a2a_celery.telemetry.logs import JsonFormatter, TextFormatter
from a2a_celery.testing import AgentFleet
from a2a_celery.testing.fleet import WORKER_READY
from tests.support.processes.kit_systems import Scenario, fleet_system, simulated_system

Open = Callable[[str], AbstractAsyncContextManager[Scenario]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder to which the agents write."""
    folder = tmp_path_factory.mktemp("kit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_FOLDER", str(folder))
        yield folder


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[AgentFleet]:
    """Fleet of real processes."""
    with AgentFleet("tests.support.agents.kit_agents", env={"KIT_FOLDER": str(folder)}) as fleet:
        yield fleet


@pytest.fixture(params=["simulation", pytest.param("fleet", marks=pytest.mark.merge)])
def scenario(request: pytest.FixtureRequest, folder: Path) -> Open:
    """Function that opens a scenario with an agent, on each system."""
    fleet = request.getfixturevalue("fleet") if request.param == "fleet" else None

    @asynccontextmanager
    async def open_scenario(agent: str) -> AsyncIterator[Scenario]:
        async with simulated_system(agent) if fleet is None else fleet_system(fleet, agent) as system:
            yield Scenario(system, folder)

    return open_scenario


def end_of(result: Result) -> tuple[str, str]:
    """Return the name of the result's state and the text."""
    return result.state_name, result.text


def shape(event: StreamResponse) -> str:
    """Return the kind of an event, and its state or text."""
    match event.WhichOneof("payload"):
        case "artifact_update":
            return "artifact " + "".join(part.text for part in event.artifact_update.artifact.parts)
        case "status_update":
            return f"status {event.status_update.status.state}"
        case kind:
            return str(kind)


@pytest.mark.parametrize(("agent", "text"), [("echo", "hello"), ("shouter", "HELLO"), ("caller", "hellohello")])
async def test_an_answer(scenario: Open, agent: str, text: str) -> None:
    async with scenario(agent) as case:
        assert end_of(await case.send("hello")) == ("COMPLETED", text)


async def test_a_stream_has_its_events_in_order(scenario: Open) -> None:
    async with scenario("words") as case:
        events = [shape(event) for event in await case.events("one two three")]

    working = [event for event in events if event == "status 2"]
    assert [event for event in events if event not in working] == [
        "task",
        "artifact one ",
        "artifact two ",
        "artifact three ",
        *(["artifact "] if "artifact " in events else []),
        "status 3",
    ]


async def test_questions_and_answers(scenario: Open) -> None:
    async with scenario("asker") as case:
        first = await case.send("begin")
        assert end_of(first) == ("INPUT_REQUIRED", "First?")
        second = await case.answer(first, "one")
        assert end_of(second) == ("INPUT_REQUIRED", "Second?")
        assert end_of(await case.answer(second, "two")) == ("COMPLETED", "one two")


async def test_a_question_with_a_schema(scenario: Open) -> None:
    async with scenario("booker") as case:
        question = await case.send("a table")
        assert question.state_name == "INPUT_REQUIRED"
        with pytest.raises(A2AError, match="people"):
            await case.answer(question, {"people": "many", "name": "Ann"})
        assert end_of(await case.answer(question, {"people": 2, "name": "Ann"})) == ("COMPLETED", "2 for Ann")


async def test_a_cancel_stops_the_agent(scenario: Open) -> None:
    async with scenario("silent") as case:
        session = await case.begin("work")
        await case.wait_for_place(session, "working")

        assert end_of(await case.client.cancel(session.task_id)) == ("CANCELED", "Cancelled by the client.")


async def test_failures(scenario: Open) -> None:
    async with scenario("failing") as case:
        assert end_of(await case.send("No seats.")) == ("FAILED", "No seats.")
        failure = await case.send("secret")
        assert failure.state_name == "FAILED"
        assert failure.text.startswith("The agent failed.")
        assert "a secret" not in failure.text


async def test_recorded_steps_are_not_repeated_after_a_crash(scenario: Open) -> None:
    async with scenario("stepper") as case:
        session = await case.begin("work")
        await case.wait_for_place(session, "b in attempt 1")

        await case.system.crash()

        assert end_of(await case.result(session)) == ("COMPLETED", "abc")
        assert case.places(session) == ["a in attempt 1", "b in attempt 1", "b in attempt 2", "c in attempt 2"]


async def test_a_crash_without_another_attempt(scenario: Open) -> None:
    async with scenario("fragile") as case:
        session = await case.begin("work")
        await case.wait_for_place(session, "working")

        await case.system.crash()

        assert end_of(await case.result(session)) == ("FAILED", "The worker was lost.")


@pytest.mark.parametrize(("agent", "text"), [("retrying", "retry 1"), ("flaky", "hello 1")])
async def test_a_retry(scenario: Open, agent: str, text: str) -> None:
    async with scenario(agent) as case:
        session = await case.begin("hello")
        await case.wait_for_metadata(session, "nextAttemptAt")

        await case.system.advance(3)

        assert end_of(await case.result(session)) == ("COMPLETED", text)


async def test_a_sleep(scenario: Open) -> None:
    async with scenario("sleeper") as case:
        session = await case.begin("sleep")
        await case.wait_for_metadata(session, "a2a_celery/continuesAt")

        await case.system.advance(6)

        assert end_of(await case.result(session)) == ("COMPLETED", "awake")


async def test_a_signal(scenario: Open) -> None:
    async with scenario("waiter") as case:
        session = await case.begin("86400")
        await case.wait_for_metadata(session, "a2a_celery/waitsFor")

        await case.system.signal(session.task_id, "approval", {"by": "Ann"})

        assert end_of(await case.result(session)) == ("COMPLETED", "approved by Ann")


async def test_a_signal_that_does_not_arrive(scenario: Open) -> None:
    async with scenario("waiter") as case:
        session = await case.begin("2")
        await case.wait_for_metadata(session, "a2a_celery/waitsFor")

        await case.system.advance(2)

        assert end_of(await case.result(session)) == ("COMPLETED", "too late")


async def test_a_celery_task(scenario: Open) -> None:
    async with scenario("add") as case:
        result = await case.send({"first": 1, "second": 2})

    assert result.state_name == "COMPLETED"
    assert [part.data.number_value for part in result.parts] == [3]


async def test_a_celery_task_that_fails(scenario: Open) -> None:
    async with scenario("broken") as case:
        failure = await case.send("hello")

    assert failure.state_name == "FAILED"
    assert failure.text.startswith("The agent failed.")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_fleet_recognizes_that_a_worker_is_ready(formatter: logging.Formatter) -> None:
    started, ready = (
        logging.LogRecord("celery.worker", logging.INFO, __file__, 1, text, ("worker@host",), None)
        for text in ("%s starts", "%s ready.")
    )
    lines = formatter.format(started)
    assert WORKER_READY.search(lines) is None

    assert WORKER_READY.search(f"{lines}\n{formatter.format(ready)}\n{lines}\n")
