"""The booking agents of workers/, the format of the answers to their questions, and clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import httpx
from a2a.helpers import get_message_text
from a2a.types import Message, Role, Task
from a2a.types import Part as A2APart

from a2a_celery import Turn

from .fleet import Gateway
from .talk import HEADERS, TIMEOUT

Part = dict[str, Any]


def _strands_answer(asked: Part, agreed: bool) -> Part:
    [interrupt] = asked["data"]["interrupts"]
    response = "yes" if agreed else "no"
    return {"data": {"interruptResponse": {"interruptId": interrupt["interruptId"], "response": response}}}


def _agent_framework_answer(asked: Part, agreed: bool) -> Part:
    [request] = asked["data"]["userInputRequests"]
    return {"data": {"type": "function_approval_response", "id": request["id"], "approved": agreed}}


def _adk_answer(asked: Part, agreed: bool) -> Part:
    call = asked["data"]
    response = {"id": call["id"], "name": call["name"], "response": {"confirmed": agreed}}
    return {"data": response, "metadata": {"adk_type": "function_response"}}


def _approval(asked: Part, agreed: bool) -> Part:
    [call_id] = asked["data"]["properties"]
    return {"data": {call_id: agreed}}


def _interrupt_answer(asked: Part, agreed: bool) -> Part:
    return {"text": "yes" if agreed else "no"}


@dataclass(frozen=True)
class BookingAgent:
    """Agent of a framework. `answer` returns the part that approves or rejects the question in a data part."""

    name: str
    answer: Callable[[Part, bool], Part]


BOOKING_AGENTS = [
    BookingAgent("strands", _strands_answer),
    BookingAgent("agent-framework", _agent_framework_answer),
    BookingAgent("adk", _adk_answer),
    BookingAgent("pydantic-ai", _approval),
    BookingAgent("openai-agents", _approval),
    BookingAgent("langgraph", _interrupt_answer),
]

WITH_SCHEMA = ("pydantic-ai", "openai-agents")
"""Agents whose questions have a JSON Schema."""


def turn(state: dict[str, Any], *parts: A2APart) -> Turn:
    """Return a turn of task "t" in context "c" with a session state, reduced to the fields that the agents use."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=parts)
    request_context = SimpleNamespace(message=message, parts=list(parts), text=get_message_text(message), task_id="t")
    request_context.context_id, request_context.session = "c", SimpleNamespace(state=state)
    request_context.stop_if_asking, request_context.task = lambda: None, Task()
    return cast(Turn, request_context)


class Client:
    """Client of one agent with one context, which sends one task after the other."""

    def __init__(self, gateway: Gateway, agent: BookingAgent) -> None:
        self.agent = agent
        self.context_id = str(uuid4())
        self.task: dict[str, Any] = {}
        self._url = f"{gateway.url}/agents/{agent.name}"

    def say(self, what: str | Part, **configuration: Any) -> str:
        """Begin a task and return its state and its last text."""
        return self._send({"text": what} if isinstance(what, str) else what, {}, configuration)

    def reply(self, part: Part) -> str:
        """Send a part to the task."""
        return self._send(part, {"taskId": self.task["id"]}, {})

    def agree(self, agreed: bool = True) -> str:
        """Approve or reject the question of the task."""
        return self.reply(self.agent.answer(self.asked, agreed))

    def cancel(self) -> str:
        """Cancel the task."""
        return self._read(httpx.post(f"{self._url}/tasks/{self.task['id']}:cancel", headers=HEADERS, timeout=TIMEOUT))

    def read(self) -> str:
        """Read the task."""
        return self._read(httpx.get(f"{self._url}/tasks/{self.task['id']}", headers=HEADERS, timeout=TIMEOUT))

    @property
    def asked(self) -> Part:
        """Return the data part of the open question."""
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
