"""Stand-in for a CrewAI model with a list of answers, and a crew of one agent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.events import LLMCallCompletedEvent, LLMCallStartedEvent, LLMStreamChunkEvent, crewai_event_bus
from crewai.events.types.llm_events import LLMCallType
from pydantic import Field

Answer = str | list[tuple[str, dict[str, Any]]] | Exception
"""Text, tool calls with their arguments, or a failure."""

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


class Script(BaseLLM):
    """Model that returns one answer after the other. The number of earlier answers in the messages selects the next
    answer.

    Attributes:
        answers: Answers of the model, or a function that returns an answer to the messages.
        calls: Numbers of the answers that were requested, in all runs.
    """

    answers: Any = Field(default=())
    calls: list[int] = Field(default_factory=list)
    is_native: bool = True
    finish_reason: str = "stop"
    on_call: Callable[[int], None] = Field(default=lambda number: None, exclude=True)

    def supports_function_calling(self) -> bool:
        """Return True if the model returns tool calls."""
        return self.is_native

    def get_context_window_size(self) -> int:
        """Return the number of tokens that the model accepts."""
        return 1_000_000

    def get_input_tokens_count(self, *args: Any, **kwargs: Any) -> int:
        return 1

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the next answer, and stream its words."""
        number = sum(message["role"] == "assistant" for message in messages)
        self.calls.append(number)
        self.on_call(number)
        answer = self.answers(messages) if callable(self.answers) else self.answers[number]
        if isinstance(answer, Exception):
            raise answer
        options: dict[str, Any] = {
            "call_id": "",
            "from_task": kwargs.get("from_task"),
            "from_agent": kwargs.get("from_agent"),
        }
        crewai_event_bus.emit(self, LLMCallStartedEvent(**options))
        if isinstance(answer, str):
            for word in re.findall(r"\S+\s*", answer):
                crewai_event_bus.emit(self, LLMStreamChunkEvent(chunk=word, **options))
        completion = LLMCallCompletedEvent(
            response="", call_type=LLMCallType.LLM_CALL, usage=USAGE, finish_reason=self.finish_reason, **options
        )
        crewai_event_bus.emit(self, completion)
        if isinstance(answer, str):
            return answer
        return [
            {
                "id": f"call-{number}-{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(kwargs)},
            }
            for n, (name, kwargs) in enumerate(answer)
        ]


def script(*answers: Answer, **options: Any) -> Script:
    """Return a model with these answers."""
    return Script(model="script", answers=answers, **options)


def crew_of(model: BaseLLM, *tools: Any, agent: Any = None, task: Any = None, **options: Any) -> Crew:
    """Return a crew of one agent with one task.

    Args:
        agent: Options of the agent.
        task: Options of the task.
        options: Options of the crew.
    """
    worker = Agent(
        **{"role": "worker", "goal": "Work.", "backstory": "You work.", "llm": model, "tools": list(tools)}
        | (agent or {})
    )
    work = Task(**{"description": "Answer.", "expected_output": "An answer.", "agent": worker} | (task or {}))
    return Crew(agents=[worker], tasks=[work], tracing=False, **options)


def user_texts(messages: Sequence[Any]) -> list[str]:
    """Return the texts of the user in the conversation of the context."""
    lines = "\n".join(str(message["content"]) for message in messages).splitlines()
    return [line.removeprefix("User: ") for line in lines if line.startswith("User: ")]
