"""Message parts that reach a framework's agent, and parts that it returns, with their format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part
from agent_framework import Agent, ChatResponseUpdate, Content
from google.protobuf.json_format import MessageToDict
from langgraph.graph import START, MessagesState, StateGraph
from llama_index.core.agent.workflow import FunctionAgent
from pydantic import BaseModel
from strands import Agent as StrandsAgent
from strands import ToolContext, tool
from strands.types.streaming import StreamEvent

from a2a_celery import InputRequired, Rejected
from a2a_celery.frameworks.adk import convert_part
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.langgraph import langgraph_agent
from a2a_celery.frameworks.llamaindex import llamaindex_agent
from a2a_celery.frameworks.strands import strands_agent
from tests.support.agents.booking_agents import NewTurn, turn
from workers import with_agent_framework, with_llamaindex, with_openai_agents, with_pydantic_ai, with_strands


def long_turn(state: dict[str, Any], *parts: Part) -> Any:
    return NewTurn(state, *parts).turn


TEXTS = [Part(text="look at"), new_data_part({"colour": "grün", "sizes": [1.5]})]
AS_TEXT = ["look at", '{"colour": "grün", "sizes": [1.5]}']


async def memory_after(
    answer: Any, *parts: Part, state: dict[str, Any] | None = None, new_turn: Callable[..., Any] = turn
) -> Any:
    """Let the agent answer a message, and return the agent's memory as a JSON value."""
    state = {} if state is None else state
    async for _ in answer(new_turn(state, *parts)):
        pass
    return json.loads(json.dumps(state["memory"]))


async def test_strands_reads_texts_and_data() -> None:
    memory = await memory_after(with_strands.clerk, *reversed(TEXTS))

    data = [block["text"] for block in memory["data"]["messages"][0]["content"]]
    assert [json.loads(data[0]), data[1]] == [json.loads(AS_TEXT[1]), AS_TEXT[0]]


async def test_strands_is_given_no_file() -> None:
    with pytest.raises(Rejected, match="reads text and data parts"):
        await memory_after(with_strands.clerk, *TEXTS, Part(raw=b"\x00", media_type="image/png"))


async def test_agent_framework_reads_all_parts() -> None:
    files = [Part(raw=b"\x00\xff", media_type="image/png"), Part(url="https://example.com/x", media_type="text/html")]

    memory = await memory_after(with_agent_framework.clerk, *TEXTS, *files)

    text = memory["state"]["in_memory"]["messages"][0]["contents"]
    assert [text[0]["text"], json.loads(text[1]["text"])] == [AS_TEXT[0], json.loads(AS_TEXT[1])]
    assert [content["uri"] for content in text[2:]] == ["data:image/png;base64,AP8=", "https://example.com/x"]
    assert [content["media_type"] for content in text[2:]] == ["image/png", "text/html"]


async def test_pydantic_ai_reads_all_parts() -> None:
    types = ["text/html", "image/png", "audio/mpeg", "video/mp4"]
    files = [Part(url="https://example.com/x", media_type=media_type) for media_type in types]

    memory = await memory_after(with_pydantic_ai.clerk, *TEXTS, Part(raw=b"\x00\xff", media_type="image/png"), *files)

    text, data, image, *urls = memory["messages"][0]["parts"][0]["content"]
    assert [text, json.loads(data)] == [AS_TEXT[0], json.loads(AS_TEXT[1])]
    assert (image["kind"], image["media_type"], image["data"]) == ("binary", "image/png", "AP8=")
    assert [url_part["kind"] for url_part in urls] == ["document-url", "image-url", "audio-url", "video-url"]
    assert [(url_part["url"], url_part["media_type"]) for url_part in urls] == [
        ("https://example.com/x", media_type) for media_type in types
    ]


async def test_openai_agents_reads_all_parts() -> None:
    files = [
        Part(raw=b"\x00\xff", media_type="image/png"),
        Part(raw=b"\x00", filename="x.pdf", media_type="application/pdf"),
        Part(url="https://example.com/x", media_type="image/png"),
        Part(url="https://example.com/x", media_type="text/html"),
    ]

    memory = await memory_after(with_openai_agents.clerk, *TEXTS, *files)

    text, data, *contents = memory["items"][0]["content"]
    assert [text["text"], json.loads(data["text"])] == [AS_TEXT[0], json.loads(AS_TEXT[1])]
    assert contents == [
        {"type": "input_image", "image_url": "data:image/png;base64,AP8=", "detail": "auto"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "x.pdf"},
        {"type": "input_image", "image_url": "https://example.com/x", "detail": "auto"},
        {"type": "input_file", "file_url": "https://example.com/x"},
    ]


PDF, PNG = "data:application/pdf;base64,AA==", "data:image/png;base64,AP8="
FILES = [
    Part(raw=b"\x00", filename="q3.pdf"),
    Part(raw=b"\x00\xff", filename="cat.png"),
    Part(url="data:application/pdf;charset=binary;base64,AA=="),
    Part(url=PNG, filename="cat"),
    Part(raw=b"\x00", media_type="text/csv", filename="a.csv"),
    Part(url="https://example.com/cat.png"),
]
"""Files without a media type, with names, and as ``data:`` URIs."""

TYPES = ["application/pdf", "image/png", "application/pdf", "image/png", "text/csv", "image/png"]
NAMES = ["q3.pdf", "cat.png", None, "cat", "a.csv", None]
URIS = [PDF, PNG, PDF, PNG, "data:text/csv;base64,AA==", "https://example.com/cat.png"]


async def test_files_reach_the_model_of_agent_framework_with_type_and_name() -> None:
    memory = await memory_after(with_agent_framework.clerk, Part(text="hello"), *FILES)

    _, *contents = memory["state"]["in_memory"]["messages"][0]["contents"]
    assert [content["uri"] for content in contents] == URIS
    assert [content["media_type"] for content in contents] == TYPES
    assert [content.get("name") for content in contents] == NAMES


async def test_files_reach_the_model_of_pydantic_ai_with_type_and_name() -> None:
    memory = await memory_after(with_pydantic_ai.clerk, Part(text="hello"), *FILES)

    _, *contents = memory["messages"][0]["parts"][0]["content"]
    files = [content for content in contents if isinstance(content, dict)]
    assert [file["media_type"] for file in files] == TYPES
    assert [file.get("data") for file in files] == ["AA==", "AP8=", "AA==", "AP8=", "AA==", None]
    assert [file["kind"] for file in files] == ["binary"] * 5 + ["image-url"]
    names = [f"This is file {name}:" for name in NAMES if name]
    assert [content for content in contents if isinstance(content, str)] == names
    assert [contents[contents.index(name) + 1] for name in names] == [files[0], files[1], files[3], files[4]]


async def test_files_reach_the_model_of_openai_agents_with_type_and_name() -> None:
    memory = await memory_after(with_openai_agents.clerk, Part(text="hello"), *FILES)

    _, *contents = memory["items"][0]["content"]
    images = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in (URIS[1], URIS[3], URIS[5])]
    files = [
        {"type": "input_file", "file_data": URIS[number], "filename": name}
        for number, name in ((0, "q3.pdf"), (2, "file.pdf"), (4, "a.csv"))
    ]
    assert contents == [files[0], images[0], files[1], images[1], files[2], images[2]]


async def test_files_reach_a_langgraph_node_with_type_and_name() -> None:
    received: list[Any] = []

    async def read(state: MessagesState) -> dict[str, Any]:
        received.extend(cast(list[Any], state["messages"][-1].content))
        return {"messages": []}

    graph = StateGraph(MessagesState)
    graph.add_node("read", read)
    graph.add_edge(START, "read")
    await memory_after(langgraph_agent(graph), Part(text="hello"), *FILES, new_turn=long_turn)

    _, *blocks = received
    assert [block["mime_type"] for block in blocks] == TYPES
    assert [block["type"] for block in blocks] == ["file", "image", "file", "image", "file", "image"]
    assert [block.get("filename") for block in blocks] == ["q3.pdf", "cat.png", "file.pdf", "cat", "a.csv", None]
    assert [block.get("base64") for block in blocks] == ["AA==", "AP8=", "AA==", "AP8=", "AA==", None]


async def test_files_reach_the_model_of_llamaindex_with_type_and_name() -> None:
    received: list[Any] = []

    class Model(with_llamaindex.StandIn):
        async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
            received.extend(messages[-1].blocks)
            return await super().astream_chat(messages, **kwargs)

    agent = llamaindex_agent(FunctionAgent(name="clerk", llm=Model()))
    await memory_after(agent, Part(text="hello"), *FILES, new_turn=long_turn)

    _, pdf, cat, data_pdf, data_cat, csv, url = received
    assert [block.document_mimetype for block in (pdf, data_pdf, csv)] == [TYPES[0], TYPES[2], TYPES[4]]
    assert [block.title for block in (pdf, data_pdf, csv)] == ["q3.pdf", "file.pdf", "a.csv"]
    assert [block.data for block in (pdf, data_pdf, csv)] == [b"AA=="] * 3
    assert [block.image_mimetype for block in (cat, data_cat, url)] == ["image/png"] * 3
    assert [block.image for block in (cat, data_cat, url)] == [b"AP8=", b"AP8=", None]


def test_files_reach_the_model_of_adk_with_type_and_name() -> None:
    *blobs, url = [convert_part(part) for part in FILES]

    contents = [cast(Any, part).inline_data for part in blobs]
    assert [content.mime_type for content in contents] == TYPES[:5]
    assert [content.display_name for content in contents] == NAMES[:5]
    assert [content.data for content in contents] == [b"\x00", b"\x00\xff", b"\x00", b"\x00\xff", b"\x00"]
    assert (cast(Any, url).file_data.mime_type, cast(Any, url).file_data.file_uri) == (TYPES[5], URIS[5])


@pytest.mark.parametrize("workers", [with_agent_framework, with_openai_agents, with_pydantic_ai, with_strands])
async def test_whole_numbers_of_data_are_integers(workers: Any) -> None:
    memory = await memory_after(workers.clerk, new_data_part({"order": 4711}))

    assert json.dumps(json.dumps({"order": 4711}))[1:-1] in json.dumps(memory)


async def test_a_whole_number_in_an_answer_to_strands_is_an_integer() -> None:
    answers = []

    @tool(context=True)
    def book(what: str, tool_context: ToolContext) -> str:
        """Ask for a number."""
        answers.append(repr(tool_context.interrupt("seats")))
        return "done"

    inn = strands_agent(lambda turn: StrandsAgent(model=with_strands.StandIn(), tools=[book], callback_handler=None))
    state: dict[str, Any] = {}
    with pytest.raises(InputRequired) as raised:
        await memory_after(inn, Part(text="book a table"), state=state)
    [question] = MessageToDict(raised.value.parts[-1].data)["interrupts"]

    answer = {"interruptResponse": {"interruptId": question["interruptId"], "response": 3}}
    await memory_after(inn, new_data_part(answer), state=state)

    assert answers == ["3"]


class Seats(BaseModel):
    """Structured output of an agent."""

    count: int


class SeatsModel(with_strands.StandIn):
    """Model that calls the tool for the structured output."""

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t", "name": "Seats"}}}}  # type: ignore[typeddict-item]
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"count": 3}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


async def test_a_structured_output_of_strands_is_data() -> None:
    inn = strands_agent(
        lambda turn: StrandsAgent(model=SeatsModel(), structured_output_model=Seats, callback_handler=None)
    )

    assert [chunk async for chunk in inn(turn({}, Part(text="x")))] == [{"count": 3}]


class Echo(with_agent_framework.StandIn):
    """Model that always returns the same answer."""

    def _inner_get_response(self, **kwargs: Any) -> Any:
        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_text("pong")])

        return self._build_response_stream(updates())


async def test_agent_framework_remembers_an_exchange_that_repeats_the_last_one() -> None:
    """The framework would drop messages without ids, because it treats them as a replay of stored messages."""
    echo = framework_agent(lambda turn: Agent(Echo(), name="echo"))
    state: dict[str, Any] = {}
    for _ in range(3):
        async for _ in echo(turn(state, Part(text="ping"))):
            pass

    messages = state["memory"]["state"]["in_memory"]["messages"]
    assert [message["contents"][0]["text"] for message in messages] == ["ping", "pong"] * 3
    assert len({message["message_id"] for message in messages if message["role"] == "user"}) == 3
