"""strands agent. Its tool asks before it books, and the client's answer may reach another worker."""

import json
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, ToolContext, tool
from strands.models import Model
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from a2a_celery import Turn
from a2a_celery.frameworks.strands import strands_agent

from .stand_in import Call, think


class StandIn(Model):
    """Stand-in for a model. For a real model, use a class in ``strands.models``."""

    def update_config(self, **model_config: Any) -> None:
        """Ignore the configuration."""

    def get_config(self) -> dict[str, Any]:
        """Return an empty configuration."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        """Yield the model's answer in chunks."""
        blocks = [block for message in messages if message["role"] == "user" for block in message["content"]]
        texts = [block["text"] for block in blocks if "text" in block]
        results = [block["toolResult"] for block in messages[-1]["content"] if "toolResult" in block]
        answer = await think(texts, results[0]["content"][0]["text"] if results else None)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(answer, Call):
            call = {"toolUseId": f"call-{len(messages)}", "name": answer.name}
            yield {"contentBlockStart": {"start": {"toolUse": call}}}  # type: ignore[typeddict-item]
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(answer.arguments)}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            for word in answer.split(" "):
                yield {"contentBlockDelta": {"delta": {"text": word + " "}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if isinstance(answer, Call) else "end_turn"}}


@tool(context=True)
def book(what: str, tool_context: ToolContext) -> str:
    """Book something after the client approves."""
    agreed = tool_context.interrupt("approval", reason={"book": what})
    return f"{what} is booked" if str(agreed).lower().startswith("y") else "nothing is booked"


def make_agent(turn: Turn) -> Agent:
    """Return a strands agent for one run."""
    return Agent(model=StandIn(), tools=[book], callback_handler=None)


clerk = strands_agent(make_agent)
