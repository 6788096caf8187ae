"""CrewAI agent. Its tool asks before it books, and the client's answer may reach another worker."""

import asyncio
import json
import re
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool

from a2a_celery import Turn
from a2a_celery.frameworks.crewai import crewai_agent

from .stand_in import Call, think

POLL_INTERVAL = 0.1


class StandIn(BaseLLM):
    """Stand-in for a model. For a real model, use a name such as "openai/gpt-5.2"."""

    def supports_function_calling(self) -> bool:
        """Return True."""
        return True

    def get_context_window_size(self) -> int:
        """Return the maximum number of tokens that the model accepts."""
        return 100_000

    def get_input_tokens_count(self, messages: Any, *args: Any, **kwargs: Any) -> int:
        """Return an estimate of the number of tokens in `messages`."""
        return len(str(messages)) // 4

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the model's answer, and stream it in chunks."""
        texts = re.findall("^User: (.*)$", "\n".join(str(one["content"]) for one in messages), re.MULTILINE)
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        answer = asyncio.run(self._think(texts, results[-1] if results else None))
        if isinstance(answer, Call):
            function = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
            return [{"id": f"call-{len(messages)}", "type": "function", "function": function}]
        for word in re.findall(r"\S+\s*", answer):
            self._send(word, kwargs)
        return answer

    async def _think(self, texts: list[str], result: str | None) -> str | Call:
        """Return the answer. Empty chunks show that the model is working, so that CrewAI can be stopped."""
        thinking = asyncio.create_task(think(texts, result))
        while not (await asyncio.wait({thinking}, timeout=POLL_INTERVAL))[0]:
            self._send("", {})
        return await thinking

    def _send(self, chunk: str, options: dict[str, Any]) -> None:
        task, agent = options.get("from_task"), options.get("from_agent")
        event = LLMStreamChunkEvent(chunk=chunk, call_id="", from_task=task, from_agent=agent)
        crewai_event_bus.emit(self, event)


def make_crew(turn: Turn) -> Crew:
    """Return a crew for one run. The crew's tool asks the client."""

    @tool("book")
    def book(what: str) -> str:
        """Book something after the client approves."""
        agreed = turn.blocking.ask(f"Book {what}?", schema={"type": "boolean", "title": f"Book {what}?"})
        return f"{what} is booked" if agreed else "nothing is booked"

    clerk = Agent(
        role="clerk", goal="Book things.", backstory="You work at a desk.", llm=StandIn(model="stand-in"), tools=[book]
    )
    task = Task(description="Answer the user.", expected_output="A short answer.", agent=clerk)
    return Crew(agents=[clerk], tasks=[task], tracing=False)


clerk = crewai_agent(make_crew)
