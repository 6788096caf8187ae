"""Agent of Strands that follows a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic import BaseModel
from strands import Agent, ModelRetryStrategy, ToolContext, tool
from strands.hooks import AfterInvocationEvent
from strands.types.content import Messages
from strands.types.exceptions import ModelThrottledException
from strands.types.streaming import StreamEvent

from a2a_celery import Turn
from a2a_celery.frameworks.strands import strands_agent
from workers import with_strands

from .script import Script


class Place(BaseModel):
    """Pydantic model for the output of an agent."""

    at: str


class StrandsScript(Script):
    """Agent of Strands that follows a script.

    Attributes:
        options: Options of the framework's agent.
        throttled: Number of the model request that the model throttles once.
        stateful: Whether the provider of the model stores the conversation.
        hooks: Hooks of the framework's agent.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True, **options: Any) -> None:
        super().__init__(*rounds, durable=durable)
        self.options = options
        self.throttled: int | None = None
        self.stateful = False
        self.structured_output: Any = None
        self.hooks: list[Any] = [self.remember_output]

    @staticmethod
    def results(*texts: str) -> str:
        return f"results: {'; '.join(json.dumps([{'text': text}]) for text in texts)}"

    def remember_output(self, event: AfterInvocationEvent) -> None:
        self.structured_output = event.result and event.result.structured_output

    @property
    def function(self) -> Callable[[Turn], AsyncIterator[Any]]:
        return strands_agent(self.make, durable=self.durable)

    def make(self, turn: Turn) -> Agent:
        async def ask(at: str) -> str:
            """Ask the client."""
            return await self.ask_client(turn, at)

        methods: list[Callable[..., Any]] = [self.look, self.look_in_thread, self.fail, self.grow, self.draw]
        methods += [self.call_directly, ask]
        tools = [*map(tool, methods), tool(context=True)(self.remember)]
        retry = ModelRetryStrategy(initial_delay=0)
        options = {"callback_handler": None, "retry_strategy": retry, **self.options}
        self.agent = Agent(model=Model(self), tools=[*tools], **options)
        for hook in self.hooks:
            self.agent.add_hook(hook)
        return self.agent

    async def draw(self, at: str) -> dict[str, Any]:
        """Return an image."""
        self.calls.append(at)
        return {"status": "success", "content": [{"image": {"format": "png", "source": {"bytes": at.encode()}}}]}

    def call_directly(self, at: str) -> str:
        """Call a different tool on an event loop of the framework."""
        self.record(f"direct {at}")
        result = self.agent.tool.look_in_thread(at=at, record_direct_tool_call=False)
        return str(result["content"][0]["text"])

    async def remember(self, at: str, tool_context: ToolContext) -> str:
        """Change the state of the agent."""
        state = {"seen": tool_context.agent.state.get("seen") or []}
        places = self.add_place(state, at)
        tool_context.agent.state.set("seen", state["seen"])
        return places


class Model(with_strands.StandIn):
    """Model that follows a script."""

    def __init__(self, script: StrandsScript) -> None:
        self._script = script

    @property
    def stateful(self) -> bool:
        return self._script.stateful

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        script, number = self._script, sum(message["role"] == "assistant" for message in messages)
        calls = script.begin_request(number)
        if number == script.throttled:
            script.throttled = None
            raise ModelThrottledException("too many questions")
        yield {"messageStart": {"role": "assistant"}}
        for call in calls:
            start: Any = {"toolUse": {"toolUseId": call.id, "name": call.name}}
            yield {"contentBlockStart": {"start": start}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": call.json}}}}
            yield {"contentBlockStop": {}}
        if not calls:
            blocks = [block for message in messages for block in message["content"]]
            results = [block["toolResult"]["content"] for block in blocks if "toolResult" in block]
            yield {"contentBlockStart": {"start": {}}}
            for text in ("results: ", "; ".join(json.dumps(result, default=bytes.decode) for result in results)):
                yield {"contentBlockDelta": {"delta": {"text": text}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}
