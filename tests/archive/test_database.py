"""Archives in each kind of database. Tasks are read unchanged, by their owner only, and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from a2a.types import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_celery.archive import Archive, Archived, Filter, open_archive
from a2a_celery.errors import ArchiveUnavailable, ConfigError
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, FAILED
from tests.archive.conftest import sqlite
from tests.support.store.seeds import ANN, BOB

NOW_US = 1_790_000_000_123_456
ODD = ["plain", "a:b", "with space ", "{brace}", "new\nline", "ünï", "%41", "nul\x00", "x" * 256, "ü" * 256]


def terminal_task(
    task_id: str, at_us: int = NOW_US, *, context_id: str = "c", state: TaskState = COMPLETED, text: str = "done"
) -> Task:
    """Return a terminal task with every kind of content."""
    task = Task(id=task_id, context_id=context_id)
    message = Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text=text)])
    at = Timestamp()
    at.FromMicroseconds(at_us)
    task.status.CopyFrom(TaskStatus(state=state, timestamp=at, message=message))
    task.history.extend(Message(message_id=f"h{n}", role=Role.ROLE_USER, parts=[Part(text=text)]) for n in range(3))
    task.artifacts.append(Artifact(artifact_id="a", parts=[Part(raw=b"\x00\xff"), Part(text=text)]))
    task.metadata.update({"of": {"the": [1, 2.5, None, text]}})
    return task


def archive_entries(scope: Scope, *tasks: Task) -> list[Archived]:
    return [Archived(scope, task, version) for version, task in enumerate(tasks, 4)]


@pytest.mark.parametrize("text", ODD)
async def test_a_task_is_given_back_exactly(archive: Archive, text: str) -> None:
    [copy] = archive_entries(ANN, terminal_task(f"t-{text}", context_id=text, text=text))
    copy.task.metadata[text] = 1e300

    await archive.put([copy])
    await archive.put([copy])

    assert await archive.read(ANN, copy.task.id) == copy
    page = await archive.page(Filter(ANN, NOW_US, context_id=text), size=5, artifacts=True)
    assert (page.tasks, page.total) == ([copy.task], 1)


async def test_a_task_that_json_cannot_represent_is_preserved(archive: Archive) -> None:
    [first, second] = archive_entries(ANN, terminal_task("t"), terminal_task("u"))
    first.task.metadata["n"] = float("nan")
    second.task.metadata["n"] = float("-inf")

    await archive.put([first, second])

    copies = [await archive.read(ANN, "t"), await archive.read(ANN, "u")]
    assert [task.task.SerializeToString(deterministic=True) for task in copies if task] == [
        task.task.SerializeToString(deterministic=True) for task in (first, second)
    ]
    page = await archive.page(Filter(ANN, NOW_US), size=5)
    assert [len(task.artifacts) for task in page.tasks] == [0, 0]


@pytest.mark.parametrize(
    "stranger", [BOB, Scope("agent", "", "Ann"), Scope("agent", "tenant", "ann"), Scope("agent2", "", "ann"), Scope()]
)
async def test_other_callers_do_not_see_it(archive: Archive, stranger: Scope) -> None:
    await archive.put(archive_entries(ANN, terminal_task("t")))

    assert await archive.read(stranger, "t") is None
    assert (await archive.page(Filter(stranger, NOW_US), size=5)).total == 0
    assert await archive.read(ANN, "T") is None


async def test_pages_are_in_the_order_of_the_store(archive: Archive) -> None:
    ids = ["b", "B", "a", "_", "a-b", "a:b", "~"]
    tasks_at_once = [terminal_task(task_id, NOW_US + place % 2) for place, task_id in enumerate(ids)]
    await archive.put(archive_entries(ANN, *tasks_at_once, terminal_task("later", NOW_US + 2)))
    await archive.put(archive_entries(BOB, terminal_task("foreign")))

    pages, cursor = [], None
    while True:
        page = await archive.page(Filter(ANN, NOW_US + 1), size=2, cursor=cursor)
        assert page.total == len(ids)
        pages += page.tasks
        if not page.more:
            break
        last = page.tasks[-1]
        cursor = (last.status.timestamp.ToMicroseconds(), last.id.replace(":", "%3A"))

    # as in Redis, which compares the quoted ids byte by byte
    expected = sorted(
        tasks_at_once, key=lambda t: (t.status.timestamp.ToMicroseconds(), t.id.replace(":", "%3A")), reverse=True
    )
    assert [task.id for task in pages] == [task.id for task in expected]


async def test_each_filter(archive: Archive) -> None:
    tasks = [
        terminal_task("one"),
        terminal_task("two", NOW_US + 1, context_id="C"),
        terminal_task("three", NOW_US + 2, state=FAILED),
    ]
    await archive.put(archive_entries(ANN, *tasks))

    async def ids(**criteria: object) -> list[str]:
        page = await archive.page(Filter(ANN, NOW_US + 9, **criteria), size=9)  # type: ignore[arg-type]
        assert page.total == len(page.tasks)
        return [task.id for task in page.tasks]

    assert await ids() == ["three", "two", "one"]
    assert await ids(context_id="c") == ["three", "one"]
    assert await ids(state=FAILED) == ["three"]
    assert await ids(not_before_us=NOW_US + 1) == ["three", "two"]
    assert (await archive.page(Filter(ANN, NOW_US), size=0)).total == 1


async def test_the_oldest_are_forgotten_so_many_at_a_time(archive: Archive) -> None:
    await archive.put(archive_entries(ANN, *(terminal_task(f"t{n}", NOW_US + n) for n in range(5))))

    assert await archive.forget(NOW_US + 3, 2) == 2
    assert await archive.read(ANN, "t1") is None
    assert await archive.forget(NOW_US + 3, 2) == 1
    assert await archive.forget(NOW_US + 3, 2) == 0
    assert [task.id for task in (await archive.page(Filter(ANN, NOW_US + 9), size=9)).tasks] == ["t4", "t3"]


async def test_asking_whether_it_can_be_written_leaves_nothing(archive: Archive) -> None:
    await archive.require_writable()

    assert await archive.forget(NOW_US, 5) == 0


async def test_a_read_only_database_is_reported(tmp_path: Path) -> None:
    read_only_archive = open_archive(sqlite(tmp_path))
    await read_only_archive.put(archive_entries(ANN, terminal_task("t")))
    await read_only_archive.aclose()
    archive = open_archive(f"sqlite+aiosqlite:///file:{tmp_path / 'archive.db'}?mode=ro&uri=true")

    with pytest.raises(ArchiveUnavailable):
        await archive.require_writable()

    assert await archive.read(ANN, "t") is not None
    await archive.aclose()


async def test_processes_that_begin_at_once_make_one_table(url: str, archive: Archive) -> None:
    archives = [open_archive(url) for _ in range(5)]

    tasks = await asyncio.gather(*(client.read(ANN, "nobody") for client in archives))

    assert tasks == [None] * 5
    for client in archives:
        await client.aclose()


async def test_an_unreachable_database_is_reported_without_its_password() -> None:
    archive = open_archive("postgresql+asyncpg://me:s3cret@127.0.0.1:1/x")

    with pytest.raises(ArchiveUnavailable) as e:
        await archive.put(archive_entries(ANN, terminal_task("t", text="private")))

    assert "ConnectionRefusedError" in str(e.value)
    assert "s3cret" not in str(e.value)
    assert "private" not in str(e.value)
    await archive.aclose()


def test_a_missing_driver_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'a2a-celery\[archive\]'"):
        open_archive("mysql+asyncmy://127.0.0.1/x")


def test_an_option_that_the_driver_would_ignore_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^a2a_archive_url = …: .*'foo'"):
        open_archive("sqlite+aiosqlite:////tmp/archive.db?foo=1")


async def test_an_option_that_the_driver_refuses_is_named() -> None:
    archive = open_archive("postgresql+asyncpg://me:s3cret@127.0.0.1:1/x?foo=1")

    with pytest.raises(ConfigError, match=r"^a2a_archive_url = …: the driver refuses an option: .*'foo'") as exc_info:
        await archive.require_writable()

    assert "s3cret" not in str(exc_info.value)
    await archive.aclose()
