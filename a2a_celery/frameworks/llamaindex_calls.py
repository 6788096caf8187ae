"""LlamaIndex model calls as activities, with their tokens and finish reasons.

An event handler of LlamaIndex's instrumentation observes the calls, but cannot replace a call with a recorded result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, CompletionResponse
from llama_index.core.callbacks.token_counting import get_tokens_from_response
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionStartEvent,
)
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.event_handlers import BaseEventHandler

from ..execution.events.activities import Execution, current_execution
from .conversation import OpenActivities
from .usage import Usage


class ModelCalls:
    """Model calls of one run.

    Args:
        activities: Open activities of the run.
        usage: Token usage of the turn, to which the calls add their tokens.
        finish: Function that receives "" when a call begins, and then the finish reason that the provider reports.
        current_step: Function that returns the name of the workflow's step that makes the current call.
    """

    def __init__(
        self, activities: OpenActivities, usage: Usage, finish: Callable[[str], None], current_step: Callable[[], str]
    ) -> None:
        self._activities = activities
        self._usage = usage
        self._finish = finish
        self._current_step = current_step
        self._models: dict[str, str] = {}
        self._open: defaultdict[str, set[str]] = defaultdict(set)
        self._last_raw: Any = None

    def observe(self, event: BaseEvent) -> None:
        """Update the activities and the usage from an event of the instrumentation."""
        call = f"model {event.span_id}"
        match event:
            case LLMChatStartEvent() | LLMCompletionStartEvent():
                names = (event.model_dict.get(name) for name in ("model", "model_name"))
                self._models[call] = model = next((name for name in names if isinstance(name, str)), "")
                self._open[self._current_step()].add(call)
                self._activities.model_call(call, model)
                self._finish("")
            case LLMChatInProgressEvent():
                self._find_reason(event.response.raw)
            case LLMChatEndEvent() | LLMCompletionEndEvent():
                self._activities.end(call)
                if event.response is not None:
                    self._find_reason(event.response.raw)
                    self._count(event.response, self._models.get(call, ""))
            case ExceptionEvent():
                self._activities.end(call)

    def end_all(self, step: str) -> None:
        """End the calls that a workflow step has left open. LlamaIndex does not report the end of a failed call."""
        for call in self._open.pop(step, ()):
            self._activities.end(call)
            self._models.pop(call, None)

    def _count(self, response: ChatResponse | CompletionResponse, model: str) -> None:
        if response.raw is not None and response.raw is self._last_raw:
            return  # a model whose method calls another of its methods reports a response twice
        self._last_raw = response.raw
        prompt, completion = get_tokens_from_response(response)
        self._usage.add(str(_item(response.raw, "model") or model), inputs=prompt, outputs=completion)

    def _find_reason(self, raw: Any) -> None:
        choices = _item(raw, "choices")
        for owner in (raw, choices[0] if choices else None, _item(raw, "delta")):
            reason = _item(owner, "finish_reason") or _item(owner, "stop_reason")
            if isinstance(reason, str):
                self._finish(reason)


class _Handler(BaseEventHandler):
    """Event handler that passes each event to the run that emitted the event."""

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Pass the event to the `ModelCalls` of the current run. Events outside an observed run are ignored."""
        execution = current_execution()
        calls = None if execution is None else _CALLS.get(execution)
        if calls is not None:
            calls.observe(event)


_CALLS: dict[Execution, ModelCalls] = {}
"""Calls of the runs of this process."""

_HANDLER = _Handler()


@contextmanager
def observing_model_calls(calls: ModelCalls) -> Iterator[None]:
    """Observe the model calls of the current run inside the ``with`` block."""
    execution = current_execution()
    if execution is None:
        yield
        return
    dispatcher = get_dispatcher()
    if not any(handler is _HANDLER for handler in dispatcher.event_handlers):
        dispatcher.add_event_handler(_HANDLER)
    _CALLS[execution] = calls
    try:
        yield
    finally:
        del _CALLS[execution]


def _item(owner: Any, name: str) -> Any:
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
