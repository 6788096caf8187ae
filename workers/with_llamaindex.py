"""LlamaIndex agent. Its tool asks before it books, and the client's answer may reach another worker."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen, ToolCallBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.mock import MockFunctionCallingLLM
from workflows import Context
from workflows.events import HumanResponseEvent, InputRequiredEvent

from a2a_celery.frameworks.llamaindex import llamaindex_agent

from .stand_in import Call, think


class StandIn(MockFunctionCallingLLM):
    """Stand-in for a model. For a real model, use one of LlamaIndex's integrations."""

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Return the model's answer in chunks."""

        async def chunks() -> AsyncGenerator[ChatResponse, None]:
            texts = [message.content or "" for message in messages if message.role == "user"]
            last = messages[-1]
            answer = await think(texts, (last.content or "") if last.role == "tool" else None)
            if isinstance(answer, Call):
                call = ToolCallBlock(
                    tool_call_id=f"call-{len(messages)}", tool_name=answer.name, tool_kwargs=answer.arguments
                )
                yield ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))
                return
            text = ""
            for word in answer.split(" "):
                text += f"{word} "
                yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=f"{word} ")

        return chunks()


class Question(InputRequiredEvent):
    """Question to the client."""

    question: str


class Approval(HumanResponseEvent):
    """Client's decision about a booking. The fields define the JSON Schema of the answer."""

    approved: bool


async def book(ctx: Context, what: str) -> str:
    """Book something after the client approves."""
    answer = await ctx.wait_for_event(Approval, waiter_event=Question(question=f"Book {what}?"))
    return f"{what} is booked" if answer.approved else "nothing is booked"


clerk = llamaindex_agent(FunctionAgent(name="clerk", llm=StandIn(), tools=[book]))
