"""Operator commands on one task of any caller: the option ``--store`` of ``a2a get``, ``tail`` and ``cancel``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from a2a.types import StreamResponse

from a2a_celery.cli.output import EventPrinter
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from tests.support.clients.store_operator import Command, json_lines
from tests.support.store.seeds import Seeds, chunk, status

ANN, BOB = Scope("agent", "acme", "ann"), Scope("agent", "", "bob/?*")

pytestmark = pytest.mark.usefixtures("schema_record")


def call_after_task(monkeypatch: pytest.MonkeyPatch, function: Callable[[], None]) -> None:
    """Make ``tail --store`` call `function` after it has shown the task, and before it reads the log."""
    show = EventPrinter.show

    def show_and_call(self: EventPrinter, event: StreamResponse) -> None:
        show(self, event)
        if event.HasField("task"):
            function()

    monkeypatch.setattr(EventPrinter, "show", show_and_call)


class TestOneTask:
    """``get``, ``tail`` and ``cancel TASK --store`` without the credentials of the task's owner."""

    async def test_any_caller_s_task_is_shown(self, command: Command, seeds: Seeds) -> None:
        await seeds.create_task_in(COMPLETED, scope=BOB, task_id="done")

        result = await asyncio.to_thread(command, "get", "done", "--store", "--json")
        lines = await asyncio.to_thread(command, "get", "done", "--store", "--agent", "agent")

        assert [entry["id"] for entry in json_lines(result)] == ["done"]
        assert lines.stdout.splitlines()[1].startswith("agent agent, updated 20")
        assert "COMPLETED" in lines.stdout
        missing = await asyncio.to_thread(command, "get", "done", "--store", "--agent", "other", code=1)
        assert (
            "no task done of other in the store: its id or its agent is wrong, or a2a_retention has passed"
            in missing.stderr
        )

    @pytest.mark.parametrize(
        "arguments",
        [("get", "--store"), ("tail", "--store"), ("cancel", "--store"), ("get", "--tree"), ("get", "--execution")],
    )
    async def test_a_missing_task_may_be_archived(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
    ) -> None:
        monkeypatch.setenv("A2A_ARCHIVE_URL", "sqlite+aiosqlite:////tmp/never.db")

        result = await asyncio.to_thread(command, *arguments, "gone", code=1)

        assert "a2a_retention has passed, or it is archived: use a2a get gone" in result.stderr

    async def test_the_log_is_followed_until_the_task_ends_or_pauses(
        self, command: Command, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        has_read = threading.Event()
        call_after_task(monkeypatch, has_read.set)
        claim = await seeds.claim_run(task_id=await seeds.create_task(BOB, task_id="grows"))
        tailing = asyncio.create_task(asyncio.to_thread(command, "tail", "grows", "--store", "--json"))
        assert await asyncio.to_thread(has_read.wait, 30)
        await seeds.append_events(claim, chunk("one"))
        await seeds.settle_run(claim, chunk("two"), status(INPUT_REQUIRED), written_count=1)

        first, *rest = json_lines(await tailing)
        missing = await asyncio.to_thread(command, "tail", "nothing", "--store", code=1)

        assert first["task"]["id"] == "grows"
        assert [entry["artifactUpdate"]["artifact"]["parts"][0]["text"] for entry in rest[:-1]] == ["one", "two"]
        assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert "no task nothing in the store" in missing.stderr

    async def test_lost_events_are_reported_before_the_task_is_shown_again(
        self, command: Command, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        has_read, is_restored = threading.Event(), threading.Event()

        def wait_until_restored() -> None:
            has_read.set()
            assert is_restored.wait(30)

        call_after_task(monkeypatch, wait_until_restored)
        claim = await seeds.claim_run(task_id=await seeds.create_task(BOB, task_id="grows"))
        backup = await seeds.backup()
        await seeds.append_events(claim, chunk("lost"))
        tailing = asyncio.create_task(asyncio.to_thread(command, "tail", "grows", "--store"))
        assert await asyncio.to_thread(has_read.wait, 30)
        await seeds.restore(backup)
        await seeds.settle_run(claim, chunk("new"), status(COMPLETED))
        is_restored.set()

        result = await tailing

        assert result.stderr == "the store lost events that were shown: the task is shown again\n"
        task = "task grows (context the-context)"
        assert result.stdout.splitlines() == [task, "WORKING", "artifact a: lost", task, "COMPLETED", "artifact a: new"]

    async def test_an_operator_cancels_a_task_like_its_client(self, command: Command, seeds: Seeds) -> None:
        await seeds.create_task(BOB, task_id="waits")
        await seeds.claim_run(task_id=await seeds.create_task(ANN, task_id="works"))

        result = await asyncio.to_thread(command, "cancel", "waits", "--store")
        output = await asyncio.to_thread(command, "cancel", "waits", "--store", code=1)

        assert result.stdout.splitlines()[1] == "CANCELED: Stopped by an operator."
        assert await seeds.states("waits") == [SUBMITTED, CANCELED]
        assert (await seeds.task("works")).status.state == WORKING
        assert "task waits is CANCELED: it has ended" in output.stderr

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (("get", "x", "--store", "--url", "http://x"), "leave out --url"),
            (("get", "x", "--store", "--bearer-file", __file__), "leave out --bearer-file"),
            (("get", "x", "--store", "--tenant", "acme"), "leave out --tenant"),
            (("tail", "x", "--store", "--tenant", "acme"), "leave out --tenant"),
            (("cancel", "x", "--store", "--tenant", "acme"), "leave out --tenant"),
            (("get", "x", "--execution", "--bearer-file", __file__), "leave out --bearer-file"),
            (("get", "x", "--tree", "--api-key-file", __file__), "leave out --api-key-file"),
            (("get", "x", "--store", "--execution"), "--execution and --store exclude each other"),
            (("tail", "x", "--store", "-H", "a: b"), "leave out --header"),
            (("cancel", "--all", "--store", "--yes"), "--all and --store exclude each other"),
        ],
    )
    def test_wrong_usage_is_an_error_with_a_hint(
        self, command: Command, arguments: tuple[str, ...], error: str
    ) -> None:
        assert error in command(*arguments, code=2).stderr
