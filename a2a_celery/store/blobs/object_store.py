"""Folder of an object store, accessed through fsspec with or without an event loop.

fsspec's asyncio file systems (S3, GCS, Azure) are called on the event loop, and all others in threads.
"""

from __future__ import annotations

import asyncio
from functools import cached_property, partial
from typing import Any
from uuid import uuid4

from ...concurrency import DaemonThreads
from ...errors import BlobsUnavailable, ConfigError
from .references import BlobMissing, BlobRef

CALLS_AT_ONCE = 8
"""Maximum number of concurrent calls, and of threads for blocking calls, in a process."""

CALL_TIMEOUT = 30.0
"""Default seconds that a call may take."""

REMOVALS = 3
"""Maximum number of attempts to remove a folder whose contents change."""


class ObjectStore:
    """Folder of an object store. The coroutines of an instance must run on one event loop.

    Args:
        url: Any URL that fsspec supports.
        call_timeout: Seconds that a call may take. If a call in a thread takes longer, the thread is abandoned.

    Raises:
        ConfigError: fsspec or its driver for the URL is not installed, or the URL is invalid.
    """

    def __init__(self, url: str, *, call_timeout: float = CALL_TIMEOUT) -> None:
        self._call_timeout = call_timeout
        try:
            # an extra, which only deployments with blobs need
            from fsspec.core import url_to_fs  # noqa: PLC0415
        except ImportError as e:
            raise ConfigError(f"a2a_blob_url needs an extra: pip install 'a2a-celery[blobs]' ({e})") from e
        self._open = partial(url_to_fs, url.rstrip("/"), skip_instance_cache=True, use_listings_cache=False)
        try:
            self._fs, self._root = self._open(asynchronous=True)
        except (ImportError, ValueError, KeyError) as e:
            raise ConfigError(f"a2a_blob_url cannot be used: {e}") from e
        self._native = bool(self._fs.async_impl)
        self._used = False
        self._threads = DaemonThreads(CALLS_AT_ONCE, "a2a-blobs")
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)

    async def put(self, name: str, content: bytes) -> None:
        """Write a blob atomically, replacing an existing blob with the same name.

        Raises:
            BlobsUnavailable: The blob was not written.
        """
        if self._native:
            await self._call_with_timeout("write the blob", lambda: self._fs._pipe_file(self._path(name), content))
        else:
            await self._call_in_thread("write the blob", lambda: self._put(name, content))

    async def get(self, ref: BlobRef) -> bytes:
        """Return the content of a blob.

        Raises:
            BlobMissing: The blob does not exist.
            BlobsUnavailable: The object store cannot be reached.
        """
        path = self._path(ref.name)
        if self._native:
            return bytes(await self._call_with_timeout("read the blob", lambda: self._fs._cat_file(path)))
        return bytes(await self._call_in_thread("read the blob", lambda: self._fs.cat_file(path)))

    async def remove(self, folder: str) -> None:
        """Remove a folder with its contents, if the folder exists.

        Raises:
            BlobsUnavailable: The folder was not removed.
        """
        for _ in range(REMOVALS):
            try:
                await self._remove(folder)
            except BlobMissing:  # another call has removed the folder or a part of it
                if await self._exists(folder):
                    continue
            return
        raise BlobsUnavailable(f"the object store could not remove the folder {folder}: its contents keep changing")

    async def _remove(self, folder: str) -> None:
        path = self._path(folder)
        if self._native:
            await self._call_with_timeout("remove the folder", lambda: self._fs._rm(path, recursive=True))
        else:
            await self._call_in_thread("remove the folder", lambda: self._fs.rm(path, recursive=True))

    async def _exists(self, folder: str) -> bool:
        path = self._path(folder)
        if self._native:
            return bool(await self._call_with_timeout("find the folder", lambda: self._fs._exists(path)))
        return bool(await self._call_in_thread("find the folder", lambda: self._fs.exists(path)))

    async def aclose(self) -> None:
        """Close the connections to the object store."""
        if self._native and self._used and hasattr(self._fs, "set_session"):
            session = await self._fs.set_session()
            await session.close()

    def put_now(self, name: str, content: bytes) -> None:
        """Write a blob as `put` does, without an event loop."""
        try:
            self._put(name, content)
        except Exception as e:
            raise _translate_error(e, "write the blob") from e

    def get_now(self, ref: BlobRef) -> bytes:
        """Return the content of a blob as `get` does, without an event loop."""
        try:
            return bytes(self._blocking.cat_file(self._path(ref.name)))
        except Exception as e:
            raise _translate_error(e, "read the blob") from e

    def _path(self, name: str) -> str:
        # without the prefix, a folder called ".." would be outside the root
        folder, slash, rest = name.partition("/")
        return f"{self._root}/task-{folder}{slash}{rest}"

    @cached_property
    def _blocking(self) -> Any:
        """File system for code without an event loop."""
        return self._open()[0] if self._native else self._fs

    def _put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        if self._native:  # an object store needs no folders, and writes objects atomically
            self._blocking.pipe_file(path, content)
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        temporary_path = f"{path}.{uuid4().hex}"
        self._fs.pipe_file(temporary_path, content)
        self._fs.mv(temporary_path, path)

    async def _call_in_thread(self, action: str, call: Any) -> Any:
        return await self._call_with_timeout(action, lambda: self._threads.call(call))

    async def _call_with_timeout(self, action: str, call: Any) -> Any:
        self._used = True
        try:
            async with asyncio.timeout(self._call_timeout), self._calls:
                return await call()
        except Exception as e:  # each file system raises its own exceptions
            raise _translate_error(e, action) from e


def _translate_error(error: Exception, action: str) -> BlobsUnavailable:
    if isinstance(error, FileNotFoundError):
        return BlobMissing(f"the object store could not {action}: not found")
    return BlobsUnavailable(f"the object store could not {action}: {type(error).__name__}: {error}")
