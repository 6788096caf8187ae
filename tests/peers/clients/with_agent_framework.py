"""Client with the A2AAgent of agent-framework. Arguments: two gateway URLs, a webhook URL, and a binding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import steps
from a2a.client import A2ACardResolver
from a2a.types import AgentCard, TaskState
from agent_framework import AgentSession
from agent_framework_a2a import A2AAgent
from steps import TaskView


class Framework:
    def __init__(self, card: AgentCard, agent: A2AAgent) -> None:
        self._card, self._agent = card, agent

    async def card(self) -> list[object]:
        return [self._card.name, self._card.capabilities.streaming, self._card.capabilities.push_notifications]

    async def send(self, text: str, answers: TaskView | None = None) -> TaskView:
        session = AgentSession()
        if answers is not None:
            session.service_session_id = {
                "context_id": answers.context_id,
                "task_id": answers.task_id,
                "task_state": TaskState.TASK_STATE_INPUT_REQUIRED,
            }
        response = await self._agent.run(text, session=session)
        task = session.service_session_id
        questions = [request.text for request in response.user_input_requests]
        return TaskView(
            state(task["task_state"]), "".join(questions) or response.text, task["task_id"], task["context_id"]
        )

    async def stream(self, text: str) -> AsyncIterator[TaskView]:
        session = AgentSession()
        async for update in self._agent.run(text, stream=True, session=session):
            yield TaskView("", update.text)
        yield TaskView(state(session.service_session_id["task_state"]))


def state(number: int) -> str:
    return TaskState.Name(number).removeprefix("TASK_STATE_")


@asynccontextmanager
async def client(address: str, binding: str, *_: str) -> AsyncIterator[Framework]:
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, address).get_agent_card()
        async with A2AAgent(agent_card=card, http_client=http, supported_protocol_bindings=[binding]) as agent:
            yield Framework(card, agent)


if __name__ == "__main__":
    steps.main(client)
