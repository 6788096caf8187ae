"""Booking agents in workers/, the answer format of each framework, and a client of the agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import httpx
from a2a.helpers import get_message_text
from a2a.types import Message, Role, SendMessageRequest, Task
from a2a.types import Part as A2APart
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery import Turn
from tests.support.clients.bindings import sdk_client, send, state, texts
from tests.support.clients.talk import HEADERS, TIMEOUT
from tests.support.processes.fleet import Gateway

Part = dict[str, Any]


def _strands_answer(question: Part, is_agreed: bool) -> Part:
    [interrupt] = question["data"]["interrupts"]
    response = "yes" if is_agreed else "no"
    return {"data": {"interruptResponse": {"interruptId": interrupt["interruptId"], "response": response}}}


def _agent_framework_answer(question: Part, is_agreed: bool) -> Part:
    [request] = question["data"]["userInputRequests"]
    return {"data": {"type": "function_approval_response", "id": request["id"], "approved": is_agreed}}


def _adk_answer(question: Part, is_agreed: bool) -> Part:
    call = question["data"]
    response = {"id": call["id"], "name": call["name"], "response": {"confirmed": is_agreed}}
    return {"data": response, "metadata": {"adk_type": "function_response"}}


def _approval(question: Part, is_agreed: bool) -> Part:
    [call_id] = question["data"]["properties"]
    return {"data": {call_id: is_agreed}}


def _interrupt_answer(question: Part, is_agreed: bool) -> Part:
    return {"text": "yes" if is_agreed else "no"}


def _approval_property(question: Part, is_agreed: bool) -> Part:
    assert list(question["data"]["properties"]) == ["approved"]
    return {"data": {"approved": is_agreed}}


@dataclass(frozen=True)
class BookingAgent:
    """Booking agent of a framework.

    Attributes:
        name: Name of the agent.
        answer: Function that returns the part that approves or rejects the question in a data part.
    """

    name: str
    answer: Callable[[Part, bool], Part]


BOOKING_AGENTS = [
    BookingAgent("strands", _strands_answer),
    BookingAgent("agent-framework", _agent_framework_answer),
    BookingAgent("adk", _adk_answer),
    BookingAgent("pydantic-ai", _approval),
    BookingAgent("openai-agents", _approval),
    BookingAgent("langgraph", _interrupt_answer),
    BookingAgent("llamaindex", _approval_property),
]

WITH_SCHEMA = ("pydantic-ai", "openai-agents", "llamaindex")
"""Names of the agents whose questions have a JSON Schema."""


def turn(state: dict[str, Any], *parts: A2APart) -> Turn:
    """Return a stub of a turn of task "t" in context "c". The stub has the session state and the fields that the agents
    read."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=parts)
    request_context = SimpleNamespace(message=message, parts=list(parts), text=get_message_text(message), task_id="t")
    request_context.context_id, request_context.session = "c", SimpleNamespace(state=state)
    request_context.stop_if_asking, request_context.task = lambda: None, Task()
    return cast(Turn, request_context)


class NewTurn:
    """Stub of a turn with a session. `said` contains the status messages of the turn."""

    def __init__(self, state: dict[str, Any], *parts: A2APart) -> None:
        self.said: list[Any] = []
        self.turn: Any = turn(state, *parts)
        self.turn.question_count, self.turn.replay_questions = 0, lambda count: None
        self.turn.say = self.say

    async def say(self, text: str = "", *, parts: Any = ()) -> None:
        self.said.append(text or [MessageToDict(part) for part in parts])


async def book_over(gateway: Gateway, agent: BookingAgent, binding: str) -> str:
    """Book a table with the SDK's client over a binding, approve the agent's question, and return the text of the last
    artifact."""
    async with sdk_client(gateway, agent.name, binding, streaming=False) as client:
        question_task = await send(client, "book a table")
        assert state(question_task) == "INPUT_REQUIRED", question_task
        [question] = [MessageToDict(part) for part in question_task.status.message.parts if part.HasField("data")]
        message = Message(
            message_id=str(uuid4()), role=Role.ROLE_USER, task_id=question_task.id, context_id=question_task.context_id
        )
        message.parts.append(ParseDict(agent.answer(question, True), A2APart()))
        [response] = [event async for event in client.send_message(SendMessageRequest(message=message))]
        assert state(response.task) == "COMPLETED", response
        return texts(response.task)[-1].strip()


class Client:
    """Client that sends all messages to one agent in one context. `task` is the current task."""

    def __init__(self, gateway: Gateway, agent: BookingAgent) -> None:
        self.agent = agent
        self.context_id = str(uuid4())
        self.task: dict[str, Any] = {}
        self._url = f"{gateway.url}/agents/{agent.name}"

    def say(self, what: str | Part, **configuration: Any) -> str:
        """Start a task. Return its state and, if it completed, the text of the last artifact."""
        return self._send({"text": what} if isinstance(what, str) else what, {}, configuration)

    def stream(self, text: str) -> list[str]:
        """Start a task and return the chunks of the streamed text."""
        chunks = []
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "contextId": self.context_id}
        body = {"message": {**message, "parts": [{"text": text}]}}
        url = f"{self._url}/message:stream"
        with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=TIMEOUT) as response:
            for line in response.iter_lines():
                event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                parts = event.get("artifactUpdate", {}).get("artifact", {}).get("parts", [])
                chunks.append("".join(part.get("text", "") for part in parts))
        return [chunk for chunk in chunks if chunk]

    def reply(self, part: Part) -> str:
        """Send a part to the current task."""
        return self._send(part, {"taskId": self.task["id"]}, {})

    def agree(self, is_agreed: bool = True) -> str:
        """Approve or reject the open question."""
        return self.reply(self.agent.answer(self.question, is_agreed))

    def cancel(self) -> str:
        """Cancel the current task."""
        return self._read(httpx.post(f"{self._url}/tasks/{self.task['id']}:cancel", headers=HEADERS, timeout=TIMEOUT))

    def read(self) -> str:
        """Read the current task."""
        return self._read(httpx.get(f"{self._url}/tasks/{self.task['id']}", headers=HEADERS, timeout=TIMEOUT))

    @property
    def question(self) -> Part:
        """Data part of the open question."""
        [part] = [part for part in self.task["status"]["message"]["parts"] if "data" in part]
        return dict(part)

    @property
    def state(self) -> str:
        return str(self.task["status"]["state"]).removeprefix("TASK_STATE_")

    def _send(self, part: Part, more: dict[str, Any], configuration: dict[str, Any]) -> str:
        message = {
            "messageId": str(uuid4()),
            "role": "ROLE_USER",
            "contextId": self.context_id,
            "parts": [part],
            **more,
        }
        answer = httpx.post(
            f"{self._url}/message:send",
            json={"message": message, "configuration": configuration},
            headers=HEADERS,
            timeout=TIMEOUT,
        )
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> str:
        assert answer.status_code == 200, answer.text
        task = answer.json()
        self.task = task.get("task", task)
        last = self.task.get("artifacts", [])[-1:] if self.state == "COMPLETED" else []
        text = "".join(part.get("text", "") for artifact in last for part in artifact["parts"])
        return f"{self.state} {text}".strip()
