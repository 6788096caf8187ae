"""Artifacts of the messages of a LangGraph graph.

The text of a model is streamed before other nodes see it. A later node may replace or remove the message, and a node
may drop a message of its model. The artifact changes with the message: an event with ``append=False`` replaces its
content. If the message no longer exists, the artifact has an empty text.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from a2a.types import Artifact, Part, TaskArtifactUpdateEvent
from a2a.utils.errors import InvalidAgentResponseError
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import add_ai_message_chunks
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..lifecycle.events import data_part, parts_of
from ..lifecycle.files import normalized_file
from .langgraph_checkpoints import TurnProgress

logger = logging.getLogger(__name__)

RESPONSE = "response"
"""Name of the artifact of a message whose node is unknown."""

STRUCTURED_RESPONSE = "structured_response"
"""Channel of the structured response in a graph's state, and name of its artifact."""

NOT_FOR_CLIENTS = frozenset(
    {"reasoning", "thinking", "redacted_thinking", "tool_call", "tool_call_chunk", "invalid_tool_call", "tool_use"}
    | {"input_json_delta", "function_call", "server_tool_call", "server_tool_call_chunk", "server_tool_result"}
)
"""Types of content blocks that are not part of an answer."""

NS_SEP = "|"
"""Separator of the names in the namespace of a task or a graph."""

Namespace = tuple[str, ...]
"""Namespace of a graph. The namespace of the agent's graph is empty."""

Events = list[TaskArtifactUpdateEvent]


class NodeAttempts:
    """Failed attempts of nodes in one run, and the attempt that each message of a model belongs to.

    A task is the execution of a node in a super-step. The namespace of a task is the same in each attempt and each run.

    Attributes:
        tasks: Namespaces of the tasks that were executed in this run.
    """

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        self._failures: dict[str, int] = {}
        self._attempts: dict[str, int] = {}

    def add_failure(self, task: str) -> None:
        """Record that an attempt of `task` failed or was interrupted."""
        self._failures[task] = self._failures.get(task, 0) + 1

    def add_message(self, message_id: str, task: str) -> None:
        """Record that the current attempt of `task` writes a message."""
        self._attempts[message_id] = self._failures.get(task, 0)

    def failed_tasks(self) -> set[str]:
        """Return the tasks of which an attempt failed or was interrupted."""
        return set(self._failures)

    def attempt_of(self, message_id: str, task: str) -> int:
        """Return the number of failed attempts of `task` before the message."""
        return self._attempts.get(message_id, self._failures.get(task, 0))


@dataclass(eq=False)
class _MessageArtifact:
    """Artifact of a message, as the client has it.

    Attributes:
        artifact_id: Id of the artifact.
        name: Name of the artifact.
        task: Namespace of the task that wrote the message, or "" if an earlier run wrote the message.
        message_id: Id of the message, or "" if it is unknown.
        parts: Parts that were sent. Empty if the artifact has not begun, or was emptied.
        is_open: True if the last chunk has not been sent.
        file_chunks: Chunks of the message that contain files. The files are sent with the last chunk.
    """

    artifact_id: str
    name: str = RESPONSE
    task: str = ""
    message_id: str = ""
    parts: list[Part] = field(default_factory=list)
    is_open: bool = False
    file_chunks: list[AIMessageChunk] = field(default_factory=list)

    def replace(self, parts: Sequence[Part] = ()) -> TaskArtifactUpdateEvent:
        """Return the event that replaces the content of the artifact. Without parts, the artifact is emptied."""
        self.parts = []
        return self.append(parts, is_last=True)

    def append(self, parts: Sequence[Part], *, is_last: bool) -> TaskArtifactUpdateEvent:
        """Return the event that begins the artifact with `parts`, or appends them."""
        append, self.is_open = bool(self.parts), not is_last
        self.parts.extend(parts)
        artifact = Artifact(artifact_id=self.artifact_id, name=self.name, parts=parts or [Part(text="")])
        return TaskArtifactUpdateEvent(artifact=artifact, append=append, last_chunk=is_last)

    def files(self) -> list[Part]:
        """Return the files in the chunks of the message."""
        if not self.file_chunks:
            return []
        return [part for part in content_parts(add_ai_message_chunks(*self.file_chunks)) if not part.HasField("text")]


class MessageArtifacts:
    """Artifacts of the messages of one turn, one for each message.

    The artifact id is derived from the node's task and the position of the message. A repeated execution of a node
    therefore replaces the node's artifacts.

    Args:
        progress: Progress of the turn, with the artifacts of messages that are in the graph's state.
        earlier: Artifacts that earlier runs of the turn may have sent.
        attempts: Attempts of the nodes in this run.
    """

    def __init__(self, progress: TurnProgress, earlier: Iterable[Artifact], attempts: NodeAttempts) -> None:
        self._progress = progress
        self._attempts = attempts
        self._earlier = [
            _MessageArtifact(artifact.artifact_id, artifact.name, parts=list(artifact.parts)) for artifact in earlier
        ]
        self._by_id = {artifact.artifact_id: artifact for artifact in self._earlier}
        self._by_message: dict[str, _MessageArtifact] = {}
        for message_id, artifact_id in progress.artifacts.items():
            self._assign(message_id, self._by_id.get(artifact_id) or _MessageArtifact(artifact_id))
        self._counts: dict[str, tuple[int, int]] = {}
        """Number of failed attempts, and number of messages in the last attempt, by task."""
        self._in_state: dict[Namespace, set[str]] = {(): set(progress.artifacts)}
        """Ids of the messages with an artifact in the state of each graph."""
        self._last_ids: dict[Namespace, str] = {}
        """Id of the last message in the state of each graph, or "" if no model wrote the message."""
        self._data: dict[str, Part] = {}
        """Data parts that replace the JSON text of a message, by the id of the message."""

    @property
    def has_content(self) -> bool:
        """True if the turn has an artifact with content."""
        return any(_joined(artifact.parts) for artifact in self._by_id.values())

    def add(self, message: AIMessage, metadata: Mapping[str, Any]) -> Events:
        """Return the events for a message or the next chunk of a message."""
        message_id = message.id or ""
        if message_id in self._progress.hidden:
            return []
        parts = content_parts(message)
        artifact = self._by_message.get(message_id)
        if artifact is None:
            if not parts:
                return []
            artifact = self._begin(message_id, metadata)
        is_last = True
        if isinstance(message, AIMessageChunk):
            is_last = message.chunk_position == "last"
            texts = [part for part in parts if part.HasField("text")]
            if len(texts) < len(parts):
                artifact.file_chunks.append(message)
                artifact.is_open = True
            parts = texts + (artifact.files() if is_last else [])
        return [artifact.append(parts, is_last=is_last)] if parts or (is_last and artifact.parts) else []

    def update(self, namespace: Namespace, messages: Sequence[Any]) -> Events:
        """Return the events that adapt the artifacts to the messages in the state of a graph.

        If a node has replaced a message, its artifact is replaced. If a node has removed a message, or returns other
        messages than its model wrote, the artifact is emptied.
        """
        self._assign_by_text(messages)
        state = {message.id: message for message in messages if isinstance(message, AIMessage) and message.id}
        artifacts = {message_id: self._by_message[message_id] for message_id in state if message_id in self._by_message}
        tasks = {artifact.task for artifact in artifacts.values()} - {""}
        absent = {
            message_id: artifact
            for message_id, artifact in self._by_message.items()
            if message_id not in state and (artifact.task in tasks or message_id in self._in_state.get(namespace, ()))
        }
        self._in_state[namespace] = set(artifacts)
        self._last_ids[namespace] = str(messages[-1].id) if messages and isinstance(messages[-1], AIMessage) else ""
        if not namespace:
            self._progress.artifacts = {key: artifact.artifact_id for key, artifact in artifacts.items()}
        events = _emptied(absent.values())
        for message_id, artifact in artifacts.items():
            parts = self._parts(state[message_id])
            if _joined(artifact.parts) != parts:
                events.append(artifact.replace(parts))
        return events

    def complete(self) -> Events:
        """Return the events that complete artifacts without a last chunk, and empty artifacts of an earlier attempt
        that the last attempt of its node has not replaced."""
        events = [
            artifact.append(artifact.files(), is_last=True) for artifact in self._by_id.values() if artifact.is_open
        ]
        for task in self._attempts.tasks:
            _, number = self._counts.get(task, (0, 0))
            while (outdated := self._by_id.get(artifact_id_of(task, str(number + 1)))) is not None:
                events += _emptied([outdated])
                number += 1
        return events

    def finish(self, messages: Sequence[Any], response: Any = None, version: str = "") -> Events:
        """Return the events for the end of a turn: hidden messages, the last message, and the structured response.

        Args:
            messages: Messages in the graph's final state.
            response: Structured response of the turn, or None.
            version: Version of the structured response in the graph's state.
        """
        last = messages[-1] if messages else None
        data = None if response is None else _response_part(response)
        is_text_of_data = data is not None and isinstance(last, AIMessage) and _is_json_object(last.text)
        if data is not None and is_text_of_data and last is not None:
            self._data[str(last.id)] = data
            if str(last.id) in self._by_message:
                self._by_message[str(last.id)].name = STRUCTURED_RESPONSE
        events = self.update((), messages)
        for message in _unsent_messages(messages, self._progress.hidden, sends_results=data is None):
            if str(message.id) not in self._by_message and (parts := self._parts(message)):
                name = STRUCTURED_RESPONSE if str(message.id) in self._data else RESPONSE
                artifact = _MessageArtifact(artifact_id_of("last", str(message.id)), name)
                self._assign(str(message.id), artifact)
                events.append(artifact.replace(parts))
        if data is not None and not is_text_of_data:
            artifact = _MessageArtifact(artifact_id_of(STRUCTURED_RESPONSE, version), STRUCTURED_RESPONSE)
            self._by_id[artifact.artifact_id] = artifact
            events.append(artifact.replace([data]))
        return events

    def withdraw_refused(self) -> Events:
        """Return the events that empty the artifacts of complete messages that no node has accepted.

        These are the messages of nodes that failed, and the last message of each graph in which a node failed.
        """
        failed = self._attempts.failed_tasks()
        failed_graphs = {task.rpartition(NS_SEP)[0] for task in failed}
        last_ids = {key for namespace, key in self._last_ids.items() if NS_SEP.join(namespace) in failed_graphs}
        accepted = self._in_state[()] - {self._last_ids.get((), "")}
        return _emptied(
            artifact
            for message_id, artifact in self._by_message.items()
            if not artifact.is_open and (message_id in last_ids - accepted or artifact.task in failed)
        )

    def _begin(self, message_id: str, metadata: Mapping[str, Any]) -> _MessageArtifact:
        task = task_of(metadata)
        attempt = self._attempts.attempt_of(message_id, task)
        last_attempt, number = self._counts.get(task, (0, 0))
        number = 1 if attempt > last_attempt else number + 1
        self._counts[task] = attempt, number
        name = str(metadata.get("langgraph_node", RESPONSE))
        artifact = _MessageArtifact(artifact_id_of(task, str(number)), name, task)
        if (replaced := self._by_id.get(artifact.artifact_id)) is not None:
            self._by_message.pop(replaced.message_id, None)
        self._assign(message_id, artifact)
        return artifact

    def _assign(self, message_id: str, artifact: _MessageArtifact) -> None:
        artifact.message_id = message_id
        self._by_message[message_id] = self._by_id[artifact.artifact_id] = artifact

    def _assign_by_text(self, messages: Sequence[Any]) -> None:
        """Assign the artifacts of a run that was lost before it recorded them to the messages with their text."""
        free = [artifact for artifact in self._earlier if not artifact.message_id]
        for message in takewhile(lambda message: free and not isinstance(message, HumanMessage), reversed(messages)):
            if isinstance(message, AIMessage) and message.id and message.id not in self._by_message:
                parts = content_parts(message)
                for artifact in [artifact for artifact in free if parts and _joined(artifact.parts) == parts][-1:]:
                    self._assign(message.id, artifact)
                    free.remove(artifact)

    def _parts(self, message: BaseMessage) -> list[Part]:
        data = self._data.get(message.id or "")
        return content_parts(message) if data is None else [data]


def content_parts(message: BaseMessage) -> list[Part]:
    """Return the content of a message for the client: texts, and files with their data or URL. Adjacent texts are one
    part."""
    if isinstance(message.content, str):
        return parts_of(message.content) if message.content else []
    return _joined([part for block in message.content_blocks if (part := _part_of(block)) is not None])


def unsendable_blocks(message: BaseMessage) -> list[str]:
    """Return the types of the content blocks that `content_parts` leaves out although they may be part of an answer."""
    if isinstance(message.content, str):
        return []
    types = [_block_type(block) for block in message.content_blocks if _part_of(block) is None]
    return sorted({name for name in types if name not in NOT_FOR_CLIENTS and name != "text"})


def task_of(metadata: Mapping[str, Any]) -> str:
    """Return the namespace of the task in the metadata of a call or a message."""
    return str(metadata.get("checkpoint_ns") or metadata.get("langgraph_checkpoint_ns"))


def artifact_id_of(*names: str) -> str:
    """Return the artifact id that is derived from `names`."""
    return str(uuid5(NAMESPACE_URL, "/".join(names)))


def _unsent_messages(
    messages: Sequence[Any], hidden: Sequence[str | None], *, sends_results: bool
) -> list[BaseMessage]:
    """Return the messages of which no node has sent the content.

    Args:
        messages: Messages in the graph's final state.
        hidden: Ids of messages that are sent only at the end.
        sends_results: True to include the tool results at the end of the conversation.
    """
    hidden_messages = [message for message in messages if isinstance(message, AIMessage) and message.id in hidden]
    results = list(takewhile(lambda message: isinstance(message, ToolMessage), reversed(messages)))
    last = [message for message in messages[-1:] if isinstance(message, AIMessage)]
    return [*hidden_messages, *last, *(reversed(results) if sends_results else [])]


def _emptied(artifacts: Iterable[_MessageArtifact]) -> Events:
    events = []
    for artifact in artifacts:
        is_begun = bool(_joined(artifact.parts))
        artifact.file_chunks.clear()
        artifact.is_open = artifact.is_open and is_begun
        if is_begun:
            events.append(artifact.replace())
    return events


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return `parts` with adjacent texts joined, and without empty texts."""
    joined: list[Part] = []
    texts: list[str] = []
    for part in [*parts, None]:
        if part is not None and part == Part(text=part.text):
            texts.append(part.text)
            continue
        if text := "".join(texts):
            joined.append(Part(text=text))
        texts.clear()
        if part is not None:
            joined.append(part)
    return joined


def _block_type(block: Mapping[str, Any]) -> str:
    value = block.get("value") if block["type"] == "non_standard" else None
    return str(value.get("type") if isinstance(value, dict) else block["type"])


def _part_of(block: Mapping[str, Any]) -> Part | None:
    """Return the part for a content block, or None if the block cannot be sent."""
    if block["type"] == "text":
        return parts_of(block["text"])[0] if block.get("text") else None
    if block["type"] not in ("image", "audio", "video", "file", "text-plain"):
        return None
    extras = block.get("extras") or {}
    part = Part(
        media_type=block.get("mime_type") or "",
        filename=str(block.get("filename") or extras.get("filename") or block.get("title") or ""),
    )
    if block["type"] == "text-plain" and block.get("text"):
        part.text = block["text"]
        return part
    try:
        if block.get("base64"):
            part.raw = b64decode(block["base64"])
        else:
            part.url = block.get("url") or ""
        return normalized_file(part) if part.raw or part.url else None
    except ValueError:  # not base64
        return None


def _response_part(response: Any) -> Part | None:
    """Return the data part for a structured response, or None if the response is not JSON."""
    try:
        return data_part(to_jsonable_python(response))
    except (InvalidAgentResponseError, PydanticSerializationError, ValueError) as problem:
        logger.warning("a structured response of the type %s is not sent: %s", type(response).__qualname__, problem)
        return None


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False
