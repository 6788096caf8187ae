"""Chat model for LangGraph and LangChain that streams given messages."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult


class Script(BaseChatModel):
    """Model that streams the words of the given messages, one message for each call. The model raises an exception that
    is in the list."""

    messages: list[Any]

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, messages: list[AnyMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        message = self.messages.pop(0)
        if isinstance(message, str):
            message = AIMessage(message)
        blocks = [message.content] if isinstance(message.content, str) else message.content
        for block in blocks:
            for piece in re.findall(r"\s*\S+|\s+$", block) if isinstance(block, str) else [[block]]:
                yield ChatGenerationChunk(message=AIMessageChunk(piece))
        calls: Any = [
            {**call, "args": json.dumps(call["args"]), "index": n} for n, call in enumerate(message.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))
        if message.response_metadata.get("error"):
            raise ConnectionError


def script(*messages: AIMessage | str, **options: Any) -> Script:
    return Script(messages=list(messages), **options)
