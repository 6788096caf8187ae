"""Object stores through fsspec: a folder, memory, and a local server with the S3 API."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from fsspec.implementations.local import LocalFileSystem
from moto.server import ThreadedMotoServer

from a2a_celery.errors import BlobsUnavailable, ConfigError
from a2a_celery.settings import Settings
from a2a_celery.store.blobs.blob_store import MemoryBudget, blobs_of, reserve_memory
from a2a_celery.store.blobs.object_store import CALLS_AT_ONCE, ObjectStore
from a2a_celery.store.blobs.references import BlobMissing, BlobRef


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Address of a running server with the S3 API."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty folder, in each kind of object store."""
    if request.param != "s3":
        return f"{request.param}://{tmp_path}/blobs"
    keys = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}
    for name, value in (keys | {"ENDPOINT_URL": request.getfixturevalue("s3")}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    boto3.client("s3").create_bucket(Bucket="blobs")
    return f"s3://blobs/{tmp_path.name}"


async def test_a_blob_exists_until_its_folder_is_removed(url: str) -> None:
    objects = ObjectStore(url)
    content = bytes(range(256)) * 5000
    with pytest.raises(BlobMissing):
        await objects.get(BlobRef("t1/a", 0))

    await objects.put("t1/a", content)
    await objects.put("t1/b", b"b")
    await objects.put("t1/b", b"b")
    await objects.put("t2/a", b"other")

    other = ObjectStore(url)
    assert await other.get(BlobRef("t1/a", 0)) == content
    await other.remove("t1")
    await other.remove("t1")
    await other.aclose()
    for name in ("t1/a", "t1/b"):
        with pytest.raises(BlobMissing):
            await objects.get(BlobRef(name, 0))
    assert await objects.get(BlobRef("t2/a", 0)) == b"other"
    await objects.aclose()


async def test_a_folder_in_a_folder_is_removed_alone_or_with_it(url: str) -> None:
    objects = ObjectStore(url)
    for name in ("t/a", "t/journal-1/a", "t/journal-2/a"):
        await objects.put(name, b"x")

    await objects.remove("t/journal-1")

    with pytest.raises(BlobMissing):
        await objects.get(BlobRef("t/journal-1/a", 0))
    assert [await objects.get(BlobRef(name, 0)) for name in ("t/a", "t/journal-2/a")] == [b"x", b"x"]
    await objects.remove("t")
    for name in ("t/a", "t/journal-2/a"):
        with pytest.raises(BlobMissing):
            await objects.get(BlobRef(name, 0))
    await objects.aclose()


def test_sync_methods_write_and_read_the_same_blobs(url: str) -> None:
    objects = ObjectStore(url)
    with pytest.raises(BlobMissing):
        objects.get_now(BlobRef("t/a", 0))

    objects.put_now("t/a", b"now")

    assert objects.get_now(BlobRef("t/a", 0)) == b"now"

    async def read_blob() -> bytes:
        with_loop = ObjectStore(url)
        try:
            return await with_loop.get(BlobRef("t/a", 0))
        finally:
            await with_loop.aclose()

    assert asyncio.run(read_blob()) == b"now"


async def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    objects = ObjectStore(f"file://{tmp_path}/blobs")

    await objects.put("../x", b"x")

    assert os.listdir(tmp_path) == ["blobs"]


async def test_a_blob_is_complete_or_missing(tmp_path: Path) -> None:
    """A reader never receives a partial blob while a writer replaces it."""
    objects, content = ObjectStore(f"file://{tmp_path}"), b"c" * 2_000_000
    await objects.put("t/a", content)

    async def write() -> None:
        for _ in range(10):
            await objects.put("t/a", content)

    writing = asyncio.create_task(write())
    while not writing.done():
        assert len(await objects.get(BlobRef("t/a", 0))) == len(content)
    await writing
    assert os.listdir(tmp_path / "task-t") == ["a"]


async def test_a_call_that_hangs_blocks_no_loop_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, hangs = ObjectStore(f"file://{tmp_path}", call_timeout=0.3), threading.Event()
    under_way = []

    def hang(_: LocalFileSystem, path: str) -> bytes:
        under_way.append(path)
        hangs.wait(20)
        return b""

    monkeypatch.setattr(LocalFileSystem, "cat_file", hang)

    answers = await asyncio.gather(*(objects.get(BlobRef(f"t/{n}", 0)) for n in range(30)), return_exceptions=True)

    assert all(isinstance(answer, BlobsUnavailable) for answer in answers)
    assert len(under_way) <= CALLS_AT_ONCE
    hangs.set()


async def test_readers_wait_for_the_memory_budget() -> None:
    budget, reading, peak = MemoryBudget(100), set(), 0

    async def read_blob(name: int) -> None:
        nonlocal peak
        with reserve_memory():
            budget.hold(await budget.acquire(60))
            reading.add(name)
            peak = max(peak, len(reading))
            await asyncio.sleep(0)
            budget.hold(await budget.acquire(10))  # the earlier blob is released
            reading.discard(name)

    await asyncio.gather(*map(read_blob, range(6)))
    assert peak == 1
    with reserve_memory():
        budget.hold(await budget.acquire(500))  # a blob may be larger than the budget
    await budget.acquire(100)


async def test_a_read_that_waits_too_long_for_memory_fails() -> None:
    budget = MemoryBudget(100, timeout=0.05)
    grant = await budget.acquire(60)

    with pytest.raises(BlobsUnavailable, match="too many"):
        await budget.acquire(60)

    budget.release(grant)
    await budget.acquire(60)


async def test_the_responses_to_one_owner_reserve_at_most_half_of_the_memory_budget() -> None:
    budget = MemoryBudget(100, timeout=0.05)
    with reserve_memory("ann"):
        budget.hold(await budget.acquire(500))
        with reserve_memory("ann"), pytest.raises(BlobsUnavailable):
            await budget.acquire(1)
        with reserve_memory("bob"):
            budget.hold(await budget.acquire(50))
            with pytest.raises(BlobsUnavailable), reserve_memory("eve"):
                await budget.acquire(1)
    with reserve_memory("ann"):
        await budget.acquire(50)


@pytest.mark.parametrize(
    ("url", "error"),
    [("nonsense://x", "Protocol not known"), ("relative/path", "must be a URL"), ("hdfs://x/y", "a2a_blob_url")],
)
def test_a_url_that_can_not_be_used_is_refused_at_start(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        blobs_of(Settings(store_url="redis://127.0.0.1/0", blob_url=url))


async def test_without_a_url_there_is_no_object_store() -> None:
    blobs = blobs_of(Settings(store_url="redis://127.0.0.1/0"))

    with pytest.raises(BlobsUnavailable, match="this process has no a2a_blob_url"):
        await blobs.remove("t")
    await blobs.aclose()
