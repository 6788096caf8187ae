"""LangGraph agent. Its tool asks before it books, and the client's answer may reach another worker."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from a2a_celery.frameworks.langgraph import langgraph_agent

from .stand_in import Call, think


class StandIn(BaseChatModel):
    """Stand-in for a model. For a real model, use one of LangChain's integrations, with ``bind_tools([book])``."""

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: Sequence[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        texts = [str(message.text) for message in messages if isinstance(message, HumanMessage)]
        last = messages[-1]
        answer = await think(texts, str(last.text) if isinstance(last, ToolMessage) else None)
        if isinstance(answer, Call):
            call = ToolCall(name=answer.name, args=dict(answer.arguments), id=f"call-{len(messages)}")
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=[call]))
            return
        for word in answer.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


@tool
def book(what: str) -> str:
    """Book something after the client approves."""
    agreed = interrupt({"question": f"Book {what}?", "book": what})
    return f"{what} is booked" if str(agreed).lower().startswith("y") else "nothing is booked"


async def ask_model(state: MessagesState) -> dict[str, list[BaseMessage]]:
    """Return the model's answer to the conversation."""
    return {"messages": [await StandIn().ainvoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("model", ask_model)
graph.add_node("tools", ToolNode([book]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")

clerk = langgraph_agent(graph)
