"""Questions with an answer schema, on real workers and over each binding, with valid and invalid answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from a2a_celery.cli.main import main
from a2a_celery.client import AnswerRefused, InputRequest, RemoteAgent
from tests.support.agents.structured_agents import Table
from tests.support.clients.bindings import ServedFleet, base_url, rest
from tests.support.clients.operation_calls import Answer, ask
from tests.support.processes.fleet import running_fleet
from tests.support.processes.terminal import terminal
from tests.support.waiting import LIMIT

SCHEMA_KEY = "a2a_celery/answer_schema"
TABLE = {"people": 2, "name": "Ada"}


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.structured_agents") as fleet:
        yield ServedFleet(fleet, fleet.gateway(grpc=True), fleet.worker(pool="prefork", concurrency=2))


class Talk:
    """Conversation in one task over one binding."""

    def __init__(self, served_fleet: ServedFleet, agent: str, binding: str) -> None:
        self.fleet, self._agent, self._binding = served_fleet, agent, binding
        self._sent = 0
        self.task: dict[str, Any] = {}

    async def say(self, *parts: dict[str, Any]) -> Answer:
        """Send a message, wait for the end of its turn, and return the response. An accepted message updates `task`."""
        self._sent += 1
        message: dict[str, Any] = {"messageId": f"m{self._sent}", "role": "ROLE_USER", "parts": list(parts)}
        if self.task:
            message["taskId"] = self.task["id"]
        params, gateway = {"message": message}, self.fleet.gateway
        answer = await ask(gateway, self._binding, "SendMessage", params, "", self._agent, {})
        if answer.is_success:
            self.task = answer.data.get("result", answer.data)["task"]
        return answer

    def current_task(self) -> dict[str, Any]:
        """Return the current task from the gateway."""
        response: dict[str, Any] = rest(
            self.fleet.gateway, "GET", f"/tasks/{self.task['id']}", agent=self._agent
        ).json()
        return response

    @property
    def state(self) -> str:
        return str(self.task["status"]["state"]).removeprefix("TASK_STATE_")

    @property
    def question(self) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = self.task["status"]["message"]["parts"]
        return parts

    @property
    def result(self) -> str:
        return "".join(part["text"] for part in self.task["artifacts"][0]["parts"])


def violations(answer: Answer) -> list[tuple[str, str]]:
    """Return the field violations of an InvalidParamsError, from a response of any binding."""
    error = answer.data["error"]
    details = error.get("details", error.get("data"))
    [bad_request] = [detail for detail in details if detail["@type"].endswith("BadRequest")]
    return [(item["field"], item["description"]) for item in bad_request["fieldViolations"]]


@pytest.fixture(params=["JSONRPC", "HTTP+JSON", "GRPC"])
def binding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_question_carries_its_schema_and_gets_an_answer_that_fits(
    served_fleet: ServedFleet, binding: str
) -> None:
    talk = Talk(served_fleet, "table", binding)

    await talk.say({"text": "a table, please"})
    assert talk.state == "INPUT_REQUIRED"
    text, schema = talk.question
    assert text["text"] == "Which table?"
    assert (schema["mediaType"], schema["metadata"]) == ("application/schema+json", {SCHEMA_KEY: True})
    assert set(schema["data"]["required"]) == {"people", "name"}
    await talk.say({"data": TABLE | {"meal": "lunch"}})
    assert talk.question[0]["text"] == "Shall I book it?"
    await talk.say({"text": "true"})

    assert (talk.state, talk.result) == ("COMPLETED", "2 for Ada, lunch")


async def test_an_answer_that_does_not_fit_is_refused_and_nothing_is_lost(
    served_fleet: ServedFleet, binding: str
) -> None:
    talk = Talk(served_fleet, "table", binding)
    await talk.say({"text": "a table, please"})
    task_before = talk.current_task()

    refused_answer = await talk.say({"text": "well:"}, {"data": {"people": 30, "meal": "tea"}})

    assert refused_answer.status in (200, 400, "INVALID_ARGUMENT")
    assert sorted(violations(refused_answer)) == [
        ("message.parts[1].data", "Missing: name."),
        ("message.parts[1].data.meal", "'tea' is not one of ['lunch', 'dinner']."),
        ("message.parts[1].data.people", "30 is greater than the maximum of 20."),
    ]
    assert not (await talk.say({"text": "a big one"})).is_success
    assert talk.current_task() == task_before
    await talk.say({"data": TABLE})
    assert talk.question[0]["text"] == "Shall I book it?"


async def test_the_agents_own_validator_asks_again_with_the_reason(served_fleet: ServedFleet, binding: str) -> None:
    talk = Talk(served_fleet, "table", binding)
    await talk.say({"text": "a table, please"})

    await talk.say({"data": TABLE | {"people": 3}})

    reason = "The answer was not accepted. people: our tables are for an even number of people."
    assert (talk.state, talk.question[0]["text"]) == ("INPUT_REQUIRED", f"{reason}\nWhich table?")
    assert not (await talk.say({"data": {"people": 3}})).is_success, "the schema is still enforced"
    await talk.say({"data": TABLE})
    await talk.say({"data": False})
    assert talk.result == "not booked"


async def test_several_questions_are_answered_together(served_fleet: ServedFleet, binding: str) -> None:
    talk = Talk(served_fleet, "survey", binding)
    await talk.say({"text": "go"})
    assert talk.question[0]["text"] == "size: Which size?\ncolour: Which colour?\nnote: Anything else?"

    assert violations(await talk.say({"data": {"size": 3}})) == [("message.parts[0].data", "Missing: colour, note.")]
    await talk.say({"data": {"size": 3, "colour": "red", "note": "none"}})

    assert (talk.state, talk.result) == ("COMPLETED", "4 red none")


async def test_a_plain_task_asks_too(served_fleet: ServedFleet) -> None:
    talk = Talk(served_fleet, "plain", "HTTP+JSON")
    await talk.say({"text": "hello"})

    assert not (await talk.say({"data": {"people": "two"}})).is_success
    await talk.say({"data": TABLE})

    assert (talk.state, talk.result) == ("COMPLETED", "hello: 2 for Ada")


def test_a_client_of_protocol_0_3_recognises_and_answers_the_question(served_fleet: ServedFleet) -> None:
    task = legacy(served_fleet, [{"kind": "text", "text": "a table"}])["result"]

    [schema] = [part for part in task["status"]["message"]["parts"] if part["kind"] == "data"]
    assert schema["metadata"][SCHEMA_KEY] is True
    refused_answer = legacy(served_fleet, [{"kind": "data", "data": {"people": 2}}], taskId=task["id"])
    assert "Missing: name" in refused_answer["error"]["message"]
    answered_task = legacy(served_fleet, [{"kind": "data", "data": TABLE}], taskId=task["id"])
    assert answered_task["result"]["status"]["message"]["parts"][0]["text"] == "Shall I book it?"


def test_a_terminal_prompts_for_each_field(served_fleet: ServedFleet) -> None:
    url = f"{served_fleet.url}/agents/table"
    with terminal("from a2a_celery.cli.main import main; main()", "call", url, "a table") as screen:
        screen.shows("INPUT_REQUIRED: Which table? (answer: people, meal, name, smoking, budget, guests)")
        screen.shows("People (How many of you are coming?; a whole number): ")
        screen.types("many\n")
        screen.shows("enter a whole number")
        screen.types("30\n")
        screen.shows("Meal (lunch or dinner) [dinner]: ")
        screen.types("lunch\n")
        screen.shows("Your name: ")
        screen.types("Ada\n")
        screen.shows("Smoking (yes or no) [no]: ")
        screen.types("\n")
        screen.shows("Budget (a number) [none]: ")
        screen.types("\n")
        screen.shows("Guests (JSON) [[]]: ")
        screen.types("\n")
        screen.shows("people: 30 is greater than the maximum of 20.")
        for line in ("2", "lunch", "Ada", "yes", "10.5", '["Bob"]'):
            screen.types(f"{line}\n")
        screen.shows("Shall I book it? (yes or no): ")
        screen.types("yes\n")

        assert screen.ends() == 0
        assert "artifact response: 2 for Ada, lunch" in screen.screen


def test_a_script_answers_with_a_line_of_json(served_fleet: ServedFleet) -> None:
    lines = f"{json.dumps(TABLE)}\ntrue\n"

    result = CliRunner().invoke(main, ["call", f"{served_fleet.url}/agents/table", "a table"], input=lines)
    refused_result = CliRunner().invoke(main, ["call", f"{served_fleet.url}/agents/table", "a table"], input="many\n")

    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "COMPLETED")
    assert refused_result.exit_code == 1
    assert "This text is not JSON" in refused_result.output


async def test_the_clients_helper_answers(served_fleet: ServedFleet) -> None:
    async with RemoteAgent(f"{served_fleet.url}/agents/table") as agent:
        session = agent.session()
        request = InputRequest.of(await session.send("a table"))
        assert request is not None
        with pytest.raises(AnswerRefused):
            request.answer({"people": 2})
        confirmation = InputRequest.of(await session.send(request.answer(Table(people=2, name="Ada"))))
        assert confirmation is not None

        result = await session.send(confirmation.answer(True))

    assert (result.state_name, result.text) == ("COMPLETED", "2 for Ada, dinner")


def legacy(served_fleet: ServedFleet, parts: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Send a message to the agent "table" over protocol 0.3 and return the response."""
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": parts, **fields}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    url = f"{base_url(served_fleet.gateway, 'table')}/"
    response: dict[str, Any] = httpx.post(url, json=body, headers={"A2A-Version": "0.3"}, timeout=LIMIT).json()
    return response
