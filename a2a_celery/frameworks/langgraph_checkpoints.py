"""Checkpoint saver for LangGraph that stores checkpoints as entries in the journal of a turn.

A run that was replaced cannot write to the journal, and each later run of the turn receives the entries with its claim.
A graph therefore continues at its last super-step on any worker. At the end of the turn, the adapter moves the last
checkpoint into the session of the context.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import get_ident
from typing import Any, TypeVar

from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver

from ..concurrency import result_of
from ..features.steps.journal import RunJournal
from .turn_records import TurnRecords

T = TypeVar("T")

KIND = "checkpoint"
"""Kind of the journal's entries."""

FORM = "msgpack"
"""Encoding of the entries."""

PROGRESS = "progress"
"""Key of the entry with the `TurnProgress` of the turn."""


@dataclass
class TurnProgress:
    """Progress of a turn, saved together with the checkpoints.

    Attributes:
        answer_count: Number of the client's answers that finished nodes have received.
        asked: Number of answers that the client gave before a question, keyed by the ids of the question's interrupts.
        usage: Tokens of the turn's model calls by model.
        artifacts: Artifact ids of messages that are in the graph's state, by the id of the message.
        hidden: Ids of messages that are sent only at the end of the turn.
        response_version: Version of the structured response before the turn, or "" if there was none.
    """

    answer_count: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    usage: dict[str, UsageMetadata] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    response_version: str = ""


class TurnCheckpointSaver(BaseCheckpointSaver[str]):
    """Checkpoint saver for one run, used on the run's event loop.

    LangGraph's `InMemorySaver` holds the checkpoints. Each change is written to the journal before the method returns.

    Args:
        journal: Journal of the run, or None to store nothing.
        context_id: Id of the task's context, to which encrypted entries are bound.
        count_answers: Function that returns the number of the client's answers that the turn has received. By default,
            the number is 0.
        full_history: True to hold all checkpoints of the turn. If False, only the newest checkpoint of a namespace is
            held, and checkpoints of finished subgraph tasks are removed at the next checkpoint of the graph.

    Attributes:
        progress: Progress of the turn.
        continues_turn: True if an earlier run of the turn has written entries.

    Raises:
        SessionError: The entries are encrypted, and the current `secret_key` is missing or cannot decrypt them.
    """

    def __init__(
        self,
        journal: RunJournal | None,
        context_id: str,
        *,
        count_answers: Callable[[], int] = int,
        full_history: bool = False,
    ) -> None:
        super().__init__()
        self.progress = TurnProgress()
        self._memory = InMemorySaver(serde=self.serde)
        self._turn_records = TurnRecords(journal, KIND, FORM, context_id)
        self._count_answers = count_answers
        self._full_history = full_history
        self._loop, self._loop_thread = asyncio.get_running_loop(), get_ident()
        self._written = {key: self._load(key, content) for key, content in self._turn_records.read().items()}
        self.continues_turn = bool(self._written)

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Start from the checkpoints that `snapshot` returned in an earlier turn."""
        for key, content in snapshot.items():
            self._load(key, b64decode(content))

    def snapshot(self) -> dict[str, str]:
        """Return the checkpoints as JSON, without finished subgraph tasks and without pending writes."""
        self._remove_finished("")
        self._memory.writes.clear()
        records = self._records()
        return {key: b64encode(self._dump(records[key])).decode() for key in sorted(records) if key != PROGRESS}

    def channel_version(self, thread_id: str, channel: str) -> str:
        """Return the version of a channel in the newest checkpoint of the graph, or "" if the channel has no value."""
        saved = self._memory.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
        return "" if saved is None else str(saved.checkpoint["channel_versions"].get(channel, ""))

    async def save(self) -> None:
        """Write the changes since the last write.

        Raises:
            CancelledError: See `TurnRecords.replace`.
            StepError: See `TurnRecords.replace`.
        """
        records, contents = self._records(), dict[str, bytes | None]()
        for key, record in records.items():
            if self._written.get(key) != record:
                contents[key] = self._dump(record)
        contents |= dict.fromkeys(self._written.keys() - records.keys())
        previous_records, self._written = self._written, records
        try:
            await self._turn_records.replace(contents)
        except Exception:
            self._written = previous_records
            raise

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._memory.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for checkpoint in list(self._memory.list(config, filter=filter, before=before, limit=limit)):
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        saved_config = self._memory.put(config, checkpoint, metadata, new_versions)
        if not self._full_history:
            place = saved_config["configurable"]
            checkpoints = self._memory.storage[place["thread_id"]][place["checkpoint_ns"]]
            for other_id in checkpoints.keys() - {place["checkpoint_id"]}:  # ids depend on the clocks of the workers
                del checkpoints[other_id]
            self._remove_finished(place["checkpoint_ns"])
        self.progress.answer_count = self._count_answers()
        await self.save()
        return saved_config

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._memory.put_writes(config, writes, task_id, task_path)
        if any(channel not in WRITES_IDX_MAP for channel, _ in writes):  # the output of a finished node
            self.progress.answer_count = self._count_answers()
        await self.save()

    async def adelete_thread(self, thread_id: str) -> None:
        self._memory.delete_thread(thread_id)
        await self.save()

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._memory.get_next_version(current, channel)

    # LangGraph calls the methods below in the threads of sync nodes.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._from_thread(self.aget_tuple(config))

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        async def collect() -> Sequence[CheckpointTuple]:
            return [checkpoint async for checkpoint in self.alist(config, **options)]

        yield from self._from_thread(collect())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._from_thread(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._from_thread(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._from_thread(self.adelete_thread(thread_id))

    def _from_thread(self, call: Coroutine[Any, Any, T]) -> T:
        if get_ident() == self._loop_thread:
            call.close()
            raise RuntimeError("an async node called a subgraph without await: use ainvoke or astream")
        return result_of(asyncio.run_coroutine_threadsafe(call, self._loop))

    def _remove_finished(self, namespace: str) -> None:
        """Remove the records that are not needed to resume after the newest checkpoint of `namespace`.

        The namespace of a subgraph extends the namespace of its graph. A subgraph with a task id in its namespace ends
        with the task's super-step. Other subgraphs keep their state (`compile(checkpointer=True)`).
        """
        memory = self._memory
        for namespaces in memory.storage.values():
            for inner in [name for name in namespaces if _is_task_of(namespace, name)]:
                del namespaces[inner]
        live = {
            (thread_id, name, checkpoint_id)
            for thread_id, namespaces in memory.storage.items()
            for name, checkpoints in namespaces.items()
            for checkpoint_id in checkpoints
        }
        for place in memory.writes.keys() - live:
            del memory.writes[place]
        live_blobs = {blob for place in live for blob in self._blobs(place)}
        for blob in memory.blobs.keys() - live_blobs:
            del memory.blobs[blob]

    def _blobs(self, place: tuple[str, str, str]) -> Iterator[tuple[str, str, str, str | int | float]]:
        thread_id, namespace, checkpoint_id = place
        checkpoint, _, _ = self._memory.storage[thread_id][namespace][checkpoint_id]
        for channel, version in self.serde.loads_typed(checkpoint)["channel_versions"].items():
            yield thread_id, namespace, channel, version

    def _records(self) -> dict[str, Any]:
        """Return all stored records, keyed as in the journal."""
        memory = self._memory
        records: dict[str, Any] = {PROGRESS: asdict(self.progress)}
        for thread_id, namespaces in memory.storage.items():
            for namespace, checkpoints in namespaces.items():
                for checkpoint_id, checkpoint in checkpoints.items():
                    records[json.dumps(["checkpoint", thread_id, namespace, checkpoint_id])] = checkpoint
        for place, writes in memory.writes.items():
            for number, write in writes.items():
                records[json.dumps(["write", *place, *number])] = write
        for blob, value in memory.blobs.items():
            records[json.dumps(["value", *blob])] = value
        return records

    def _load(self, key: str, content: bytes) -> Any:
        record = self.serde.loads_typed((FORM, content))
        memory = self._memory
        if key == PROGRESS:
            self.progress = TurnProgress(**record)
            return record
        kind, *place = json.loads(key)
        match kind:
            case "checkpoint":
                thread_id, namespace, checkpoint_id = place
                memory.storage[thread_id][namespace][checkpoint_id] = record
            case "write":
                thread_id, namespace, checkpoint_id, task_id, index = place
                memory.writes[thread_id, namespace, checkpoint_id][task_id, index] = record
            case _:
                thread_id, namespace, channel, version = place
                memory.blobs[thread_id, namespace, channel, version] = record
        return record

    def _dump(self, record: Any) -> bytes:
        _, content = self.serde.dumps_typed(record)
        return content


def _is_task_of(namespace: str, name: str) -> bool:
    """Return True if `name` is the namespace of a task of the graph at `namespace`, or of a graph within the task."""
    prefix = namespace and f"{namespace}|"
    return name.startswith(prefix) and ":" in name[len(prefix) :]
