"""OpenAI Agents SDK agent. Its tool needs an approval, which may reach another worker."""

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Usage, function_tool
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent

from a2a_celery.frameworks.openai_agents import openai_agent

from .stand_in import Call, think


class StandIn(Model):
    """Stand-in for a model. For an OpenAI model, omit the argument `model` of the agent, or set it to a name."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the model's answer."""
        *_, last = [event async for event in self.stream_response(*args, **kwargs)]
        assert isinstance(last, ResponseCompletedEvent)
        return ModelResponse(output=last.response.output, usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the model's answer in chunks."""
        messages = [one["content"] for one in input if one.get("role") == "user"]
        texts = [content["text"] for contents in messages for content in contents if "text" in content]
        last = input[-1]
        is_result = last.get("type") == "function_call_output"
        answer = await think(texts, str(last["output"]) if is_result else None)
        if isinstance(answer, Call):
            yield completed(function_call(answer.name, answer.arguments, call_id=f"call-{len(input)}"))
            return
        for word in answer.split(" "):
            yield text_delta(word + " ")
        yield completed(assistant_message(answer))


def text_delta(text: str) -> TResponseStreamEvent:
    """Return the event for a chunk of text."""
    return ResponseTextDeltaEvent(
        content_index=0,
        delta=text,
        item_id="message",
        logprobs=[],
        output_index=0,
        sequence_number=0,
        type="response.output_text.delta",
    )


def completed(*output: Any) -> TResponseStreamEvent:
    """Return the last event of a response."""
    response = Response(
        id="response",
        created_at=0,
        model="stand-in",
        object="response",
        output=list(output),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    return ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")


@function_tool(needs_approval=True)
def book(what: str) -> str:
    """Book something after the client approves."""
    return f"{what} is booked"


clerk = openai_agent(
    Agent(name="clerk", model=StandIn(), tools=[book]),
    run_config=RunConfig(tracing_disabled=True),  # or set OPENAI_API_KEY, and see the traces at OpenAI
)
