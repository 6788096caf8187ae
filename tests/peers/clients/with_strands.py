"""Client with the A2AAgent of Strands. Arguments: two gateway URLs, a webhook URL, and a binding (JSON-RPC)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import steps
from a2a.types import TaskArtifactUpdateEvent
from steps import TaskView
from strands.agent.a2a_agent import A2AAgent
from strands.agent.agent_result import AgentResult


def of_result(result: AgentResult) -> TaskView:
    return TaskView(
        result.stop_reason, "".join(block["text"] for block in result.message["content"] if "text" in block)
    )


class Strands:
    lacks = frozenset({"answer"})

    def __init__(self, agent: A2AAgent) -> None:
        self._agent = agent

    async def card(self) -> list[object]:
        card = await self._agent.get_agent_card()
        return [card.name, card.capabilities.streaming, card.capabilities.push_notifications]

    async def send(self, text: str) -> TaskView:
        return of_result(await self._agent.invoke_async(text))

    async def stream(self, text: str) -> AsyncIterator[TaskView]:
        async for event in self._agent.stream_async(text):
            if "result" in event:
                yield TaskView(event["result"].stop_reason)
            elif isinstance(event["event"][1], TaskArtifactUpdateEvent):
                yield TaskView("", "".join(part.root.text for part in event["event"][1].artifact.parts))


@asynccontextmanager
async def client(address: str, *_: str) -> AsyncIterator[Strands]:
    yield Strands(A2AAgent(address))


if __name__ == "__main__":
    steps.main(client)
