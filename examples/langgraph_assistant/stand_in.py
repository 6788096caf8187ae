"""Stand-in for a chat model, so that the example needs no API key."""

import re
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


class StandIn(BaseChatModel):
    """Model that calls the tool `refund` if a message names an order and an amount."""

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=answer(messages))])


def answer(messages: list[BaseMessage]) -> AIMessage:
    """Return the answer to the last message of a conversation."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(last.text)
    order, amount = re.search(r"order (\w+)", last.text), re.search(r"\d+\.\d+", last.text)
    if order is None or amount is None:
        return AIMessage("Which order, and which amount? For example: Refund 19.90 for order A7.")
    call = ToolCall(name="refund", args={"order": order[1], "amount": float(amount[0])}, id=f"call-{len(messages)}")
    return AIMessage("", tool_calls=[call])
