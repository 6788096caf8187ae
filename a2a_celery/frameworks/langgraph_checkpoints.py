"""Checkpoint saver of LangGraph whose checkpoints are entries in the journal of a turn.

The journal's writes are fenced by the run, and each later run of the turn receives the entries with its claim. Thus a
graph continues at its last super-step on any worker. At the end of the turn, the adapter moves the last checkpoint into
the session of the context.
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
from ..crypto.sealing import NotSealedHere, sealer_of
from ..errors import SessionError
from ..execution.agents.journal import RunJournal

T = TypeVar("T")

KIND = "checkpoint"
"""Kind of the journal's entries."""

PLAIN, SEALED = "msgpack", "sealed msgpack"
"""Forms of the entries: readable, and encrypted with `secret_key`."""

PROGRESS = "progress"
"""Key of the entry with the `Progress` of the turn."""


@dataclass
class Progress:
    """Progress of a turn, which is saved with its checkpoints.

    Attributes:
        answer_count: Number of the client's answers that finished nodes have received.
        asked: Number of the answers before the answer to the interrupts with the ids in the key.
        usage: Tokens of the turn's model calls by model.
    """

    answer_count: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    usage: dict[str, UsageMetadata] = field(default_factory=dict)


class TurnCheckpointSaver(BaseCheckpointSaver[str]):
    """Checkpoint saver for one run, on the event loop of the run.

    LangGraph's `InMemorySaver` holds the checkpoints. Each change is written to the journal before the method returns.

    Args:
        journal: Journal of the run, or None to store nothing.
        context_id: Context of the task, to which encrypted entries are bound.
        count_answers: Function that returns the number of the client's answers that the turn has received.
        full_history: True to hold all checkpoints of the turn. If False, only the newest checkpoint of a namespace is
            held, and a checkpoint of the graph removes those of its subgraphs' finished tasks.

    Raises:
        SessionError: The current `secret_key` cannot decrypt the entries.
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
        self.progress = Progress()
        self._memory = InMemorySaver(serde=self.serde)
        self._journal = journal
        self._context_id = context_id
        self._count_answers = count_answers
        self._full_history = full_history
        self._sealer = None if journal is None else sealer_of(journal.settings.secret_keys)
        self._written: dict[str, Any] = {}
        self._loop, self._loop_thread = asyncio.get_running_loop(), get_ident()
        entries = {} if journal is None else journal.entries(KIND)
        for key, entry in entries.items():
            self._written[key] = self._load(key, self._opened(entry.content, entry.form))
        self.continues_turn = bool(entries)

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Begin with the checkpoints of an earlier turn, as `snapshot` has returned them."""
        for key, content in snapshot.items():
            self._load(key, b64decode(content))

    def snapshot(self) -> dict[str, str]:
        """Return the checkpoints as JSON, without those of the subgraphs' finished tasks and without pending writes."""
        self._remove_finished("")
        self._memory.writes.clear()
        records = self._records()
        return {key: b64encode(self._dump(records[key])).decode() for key in sorted(records) if key != PROGRESS}

    async def save(self) -> None:
        """Write what has changed since the last write; raises as `RunJournal.replace`."""
        if self._journal is None:
            return
        records, contents = self._records(), dict[str, bytes | None]()
        for key, record in records.items():
            if self._written.get(key) != record:
                contents[key] = self._sealed(self._dump(record))
        contents |= dict.fromkeys(self._written.keys() - records.keys())
        written, self._written = self._written, records
        try:
            await self._journal.replace(KIND, PLAIN if self._sealer is None else SEALED, contents)
        except Exception:
            self._written = written
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
        saved = self._memory.put(config, checkpoint, metadata, new_versions)
        if not self._full_history:
            self._remove_finished(saved["configurable"]["checkpoint_ns"])
        self.progress.answer_count = self._count_answers()
        await self.save()
        return saved

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

    # LangGraph calls the methods below in the threads of plain nodes.

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
        """Remove what a resume after the newest checkpoint of `namespace` does not read.

        The namespaces of subgraphs follow the namespace of their graph. Those with the id of a task end with the
        super-step of the task. Other subgraphs keep their state (`compile(checkpointer=True)`).
        """
        memory = self._memory
        for thread_id, namespaces in memory.storage.items():
            for inner in [name for name in namespaces if _is_task_of(namespace, name)]:
                del namespaces[inner]
            for name, checkpoints in namespaces.items():
                for checkpoint_id in sorted(checkpoints)[:-1]:
                    del checkpoints[checkpoint_id]
                    memory.writes.pop((thread_id, name, checkpoint_id), None)
        live = {
            (thread_id, name, checkpoint_id)
            for thread_id, namespaces in memory.storage.items()
            for name, checkpoints in namespaces.items()
            for checkpoint_id in checkpoints
        }
        for place in memory.writes.keys() - live:
            del memory.writes[place]
        used = {blob for place in live for blob in self._blobs(place)}
        for blob in memory.blobs.keys() - used:
            del memory.blobs[blob]

    def _blobs(self, place: tuple[str, str, str]) -> Iterator[tuple[str, str, str, str | int | float]]:
        thread_id, namespace, checkpoint_id = place
        checkpoint, _, _ = self._memory.storage[thread_id][namespace][checkpoint_id]
        for channel, version in self.serde.loads_typed(checkpoint)["channel_versions"].items():
            yield thread_id, namespace, channel, version

    def _records(self) -> dict[str, Any]:
        """Return all that is stored, by its key in the journal."""
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
        record = self.serde.loads_typed((PLAIN, content))
        memory = self._memory
        if key == PROGRESS:
            self.progress = Progress(**record)
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

    def _sealed(self, content: bytes) -> bytes:
        return content if self._sealer is None else self._sealer.seal(content, KIND, self._context_id)

    def _opened(self, content: bytes, form: str) -> bytes:
        if form == PLAIN:
            return content
        problem = f"the checkpoints of context {self._context_id!r} cannot be opened"
        if self._sealer is None:
            raise SessionError(f"{problem}: a2a_secret_key is not set: use the secret that they were saved with")
        try:
            return self._sealer.open(content, KIND, self._context_id)
        except NotSealedHere as e:
            raise SessionError(f"{problem}: {e}") from e


def _is_task_of(namespace: str, name: str) -> bool:
    """Return True if `name` is the namespace of a task of the graph at `namespace`, or of a graph within the task."""
    prefix = namespace and f"{namespace}|"
    return name.startswith(prefix) and ":" in name[len(prefix) :]
