"""Tasks with large parts, and an object store that tests can make unavailable."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from a2a.types import Part, SendMessageRequest

from a2a_celery.errors import BlobsUnavailable
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.blobs.blob_store import Blobs
from a2a_celery.store.blobs.object_store import ObjectStore
from a2a_celery.store.blobs.references import BlobRef
from a2a_celery.store.operation import Operation
from a2a_celery.store.tasks.commands import create_task
from a2a_celery.watcher.archiver import BlobRemover
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request

T = TypeVar("T")

THRESHOLD = 1024


class UnreliableObjectStore(ObjectStore):
    """Object store that counts reads, lists written names, and is unavailable while `is_down` is true."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.is_down = False
        self.written: list[str] = []
        self.reads = 0

    async def put(self, name: str, content: bytes) -> None:
        """Write an object and record its name. Raise BlobsUnavailable while `is_down` is true."""
        self._require_up()
        await super().put(name, content)
        self.written.append(name)

    async def get(self, ref: BlobRef) -> bytes:
        """Count the read and return the object. Raise BlobsUnavailable while `is_down` is true."""
        self._require_up()
        self.reads += 1
        return await super().get(ref)

    async def remove(self, folder: str) -> None:
        """Remove the objects in a folder. Raise BlobsUnavailable while `is_down` is true."""
        self._require_up()
        await super().remove(folder)

    def _require_up(self) -> None:
        if self.is_down:
            raise BlobsUnavailable("the object store is down")


class BlobSetup:
    """Store that saves large parts as files in a folder."""

    def __init__(self, url: str, folder: Path, keys: Keys) -> None:
        self.folder = folder
        self.object_store = UnreliableObjectStore(f"file://{folder}")
        self.blobs = Blobs(self.object_store, keys, THRESHOLD)
        self.store = AsyncStore(url, self.blobs)

    async def put_blobs(self, operation: Operation[T]) -> Operation[T]:
        """Write the blobs of an operation, as a writer does that is then killed or frozen. Return the script's call."""
        return await self.blobs.put(operation, self.object_store, self.store.run_raw)

    def blobs_of(self, task_id: str) -> list[Path]:
        """Return the files of a task's blobs."""
        return sorted((self.folder / f"task-{task_id}").glob("*"))


def parts_request(parts: list[Part], task_id: str) -> SendMessageRequest:
    """Return a SendMessage request with `parts`."""
    message_request = request(task_id=task_id, context_id=CONTEXT)
    del message_request.message.parts[:]
    message_request.message.parts.extend(parts)
    return message_request


async def create_task_with_parts(seeds: Seeds, parts: list[Part], task_id: str = "", **options: bool) -> str:
    """Create a task from a message with `parts` and return the task's id."""
    task_id = task_id or str(uuid4())
    operation = create_task(
        seeds.keys, ANN, task_id, CONTEXT, parts_request(parts, task_id), caller=b"{}", retention=RETENTION, **options
    )
    assert begins(await seeds.store.run(operation))
    return task_id


async def remove_due_blobs(blob_setup: BlobSetup, keys: Keys) -> None:
    """Make the removal of all blobs due, and run one tick of the blob remover."""
    redis = blob_setup.store.redis
    for key in (keys.blobs, keys.orphaned_blobs):
        for tag in await redis.zrange(key, 0, -1):
            await redis.zadd(key, {tag: 1})
    await BlobRemover(blob_setup.store, keys, blob_setup.blobs).tick()
