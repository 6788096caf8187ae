"""Framework agents with a stand-in for the model. Each agent asks a question on one worker and continues on another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.runs.release import read_activities
from tests.acceptance.test_cancel import IGNORED
from tests.support.agents.booking_agents import BOOKING_AGENTS, WITH_SCHEMA, BookingAgent, Client, book_over
from tests.support.clients.bindings import BINDINGS
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import eventually

SAMPLES = "workers.app"


class Office:
    """Fleet in which every agent has asked a question on a worker that was then killed. Another worker runs."""

    def __init__(self, fleet: Fleet) -> None:
        self.gateway: Gateway = fleet.gateway(grpc=True)
        first = fleet.worker(pool="prefork", concurrency=2)
        self.waiting = {agent.name: self.client(agent) for agent in BOOKING_AGENTS}
        self.first_results = {
            name: (client.say("hello"), client.say("book a table")) for name, client in self.waiting.items()
        }
        first.kill()
        self.worker: Process = fleet.worker(pool="threads", concurrency=4)
        self.store = SyncStore(fleet.redis.store_url)

    def steps(self, task_id: str) -> dict[tuple[int, str], list[str]]:
        """Return the states of each run of a task, by number and worker."""
        steps = self.store.run(read_activities(Keys("a2a"), task_id))
        assert steps is not None
        runs: dict[tuple[int, str], list[str]] = {}
        for step in steps.activities:
            transition = step.transition
            text = f"{transition.after} {transition.detail.get('tool', '')}".strip()
            runs.setdefault((step.run, step.runner), []).append(text)
        return runs

    def client(self, agent: BookingAgent) -> Client:
        return Client(self.gateway, agent)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with running_fleet(tmp_path_factory.mktemp("office"), app=SAMPLES) as fleet:
        office = Office(fleet)
        yield office
        office.store.close()


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_what_was_asked_on_a_worker_that_died_is_answered_on_another(office: Office, agent: BookingAgent) -> None:
    client = office.waiting[agent.name]
    assert office.first_results[agent.name] == ("COMPLETED You said: hello.", "INPUT_REQUIRED")
    assert "book" in str(client.question)

    assert client.agree() == "COMPLETED Done: a table is booked."
    [((_, first_worker), question_steps), ((_, second_worker), answer_steps)] = office.steps(client.task["id"]).items()
    assert first_worker != second_worker
    assert (question_steps[:2], question_steps[-1]) == (["INITIALIZING", "MODEL_CALL"], "INTERRUPTED")
    assert answer_steps == ["INITIALIZING", "TOOL_EXECUTION book", "MODEL_CALL", "COMPLETED"]
    assert client.say("and now?") == "COMPLETED You said: hello; book a table; and now?."


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
async def test_a_question_is_answered_over_each_binding(office: Office, agent: BookingAgent, binding: str) -> None:
    assert await book_over(office.gateway, agent, binding) == "Done: a table is booked."


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_nothing_is_booked_without_its_client(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    assert client.say("book a flight") == "INPUT_REQUIRED"

    assert "a flight is booked" not in client.agree(False)
    assert client.state == "COMPLETED"


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_a_cancel_stops_it_and_the_conversation_goes_on_without_that_turn(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    client.say("hello")
    client.say("wait", returnImmediately=True)
    eventually(lambda: client.read() == "WORKING", what="the task is WORKING")

    assert client.cancel() == "CANCELED"

    assert client.say("there?") == "COMPLETED You said: hello; there?."
    assert IGNORED not in office.worker.output()


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_a_question_whose_task_is_cancelled_holds_up_nothing(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    client.say("book a boat")

    assert client.cancel() == "CANCELED"
    assert client.say("hello").endswith("hello.")
    assert client.say("book a bus") == "INPUT_REQUIRED"
    assert client.agree() == "COMPLETED Done: a bus is booked."


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_a_turn_that_fails_leaves_the_conversation_as_it_was(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    client.say("hello")

    assert client.say("fail") == "FAILED"
    assert client.say("better?") == "COMPLETED You said: hello; better?."


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_conversations_side_by_side_do_not_meet(office: Office, agent: BookingAgent) -> None:
    def talk(name: str) -> list[str]:
        client = office.client(agent)
        return [client.say(f"{name} {n}") for n in range(3)]

    names = ["Ada", "Bea", "Cid", "Dot"]
    with ThreadPoolExecutor(len(names)) as threads:
        transcripts = list(threads.map(talk, names))

    assert [last for *_, last in transcripts] == [f"COMPLETED You said: {n} 0; {n} 1; {n} 2." for n in names]


@pytest.mark.parametrize("agent", BOOKING_AGENTS, ids=lambda agent: agent.name)
def test_text_is_streamed(office: Office, agent: BookingAgent) -> None:
    chunks = office.client(agent).stream("hello")

    assert "".join(chunks).split() == ["You", "said:", "hello."]
    assert len(chunks) == (1 if agent.name == "adk" else 3)  # ADK only streams if `streaming_mode` is set


STRUCTURED = [agent for agent in BOOKING_AGENTS if agent.name in WITH_SCHEMA]
FUNCTIONS = [agent for agent in BOOKING_AGENTS if agent.name != "adk"]
WITHOUT_SCHEMA = [agent for agent in FUNCTIONS if agent not in STRUCTURED and agent.name != "langgraph"]
"""Agents whose questions have no schema, but which do not accept every answer. LangGraph accepts any text."""


@pytest.mark.parametrize("agent", STRUCTURED, ids=lambda agent: agent.name)
def test_an_answer_that_does_not_fit_the_schema_is_refused(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    client.say("book a car")

    with pytest.raises(AssertionError, match=r"message\.parts"):
        client.reply({"text": "perhaps"})

    assert client.agree() == "COMPLETED Done: a car is booked."
    assert client.say("thanks") == "COMPLETED You said: book a car; thanks."


@pytest.mark.parametrize("agent", WITHOUT_SCHEMA, ids=lambda agent: agent.name)
def test_an_answer_that_fits_no_question_is_asked_for_again(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    client.say("book a car")
    question = client.question
    wrong = agent.answer(question, True)
    name, value = next((name, value) for name, value in wrong["data"].items())
    wrong["data"][name] = {**value, "interruptId": "another"} if isinstance(value, dict) else "another"

    assert client.reply(wrong) == "INPUT_REQUIRED"
    assert "Answer each with a data part like" in client.task["status"]["message"]["parts"][0]["text"]
    assert client.question == question
    assert client.reply({"text": "yes"}) == "COMPLETED Done: a car is booked."
    assert client.say("thanks") == "COMPLETED You said: book a car; thanks."

    assert client.say(agent.answer(question, True)) == "FAILED"
    assert client.task["status"]["message"]["parts"] == [{"text": "The question is no longer open."}]


@pytest.mark.parametrize("agent", FUNCTIONS, ids=lambda agent: agent.name)
def test_a_question_waits_while_the_context_goes_on(office: Office, agent: BookingAgent) -> None:
    client = office.client(agent)
    client.say("book a room")
    waiting_task = client.task

    assert client.say("hello") == "COMPLETED You said: hello."
    client.task = waiting_task
    assert client.agree() == "COMPLETED Done: a room is booked."
