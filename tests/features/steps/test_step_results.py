"""Results and failures of durable steps. They are replayed unchanged, or rejected with a clear error."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from a2a.types import Message, Part
from pydantic import BaseModel, ConfigDict, Field, computed_field

from a2a_celery import StepError, StepFailed, StepsChanged, Turn, step
from a2a_celery.features.steps.journal import MAX_RESULT_BYTES
from a2a_celery.features.steps.step_results import UnreadableResult, decode_failure, decode_result
from a2a_celery.store import Keys
from tests.execution.attempts import SETTINGS, Calls, Task
from tests.execution.scene import Gate, Scene
from tests.support.store.blob_setup import BlobSetup
from tests.support.store.seeds import Seeds


@dataclass
class Page:
    """Result with nested dataclasses."""

    url: str
    at: datetime
    parts: list[Inner]


@dataclass
class Inner:
    """Dataclass that is nested in a `Page`."""

    text: str


class Model(BaseModel):
    """Result that is a pydantic model."""

    n: int
    at: datetime


class Aliased(BaseModel):
    """Model whose JSON has another name for a field, and a field that is computed."""

    model_config = ConfigDict(extra="forbid")

    page_id: int = Field(alias="pageId")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def next_id(self) -> int:
        return self.page_id + 1


class Ratio(BaseModel):
    """Model with a number that JSON may not have."""

    value: float


NOW = datetime(2026, 1, 1, tzinfo=UTC)
RESULTS: list[Any] = [
    None,
    "text",
    1.5,
    {"a": [1, {"b": None}]},
    b"\x00\xff\n",
    Page("u", NOW, [Inner("x")]),
    Model(n=1, at=NOW),
    Aliased(pageId=1),
    Message(message_id="m", parts=[Part(text="x")]),
]


@pytest.mark.parametrize("value", RESULTS, ids=lambda value: type(value).__name__)
async def test_each_kind_of_result_is_replayed(task: Task, value: Any) -> None:
    results = []

    async def work() -> Any:
        results.append(1)
        return value

    async def agent(turn: Turn) -> Any:
        return await turn.step("work", work)

    first, second = await task.attempt(agent), await task.attempt(agent)

    assert first == second == value
    assert type(first) is type(second) is type(value)
    assert len(results) == 1


@dataclass
class Unserializable:
    """Dataclass with a field that cannot be serialized."""

    value: Any


def local_class() -> Any:
    """Return an object whose class cannot be imported by name."""

    @dataclass
    class Local:
        n: int = 1

    return Local()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "Return JSON data, bytes, a pydantic model, a dataclass or a protobuf message"),
        ({1: "a"}, "must be strings, not 1"),
        (float("nan"), "cannot be recorded"),
        ([Inner("x")], "Return JSON data"),
        (local_class(), "define the class at the top of a module"),
        (Unserializable(object()), "cannot be serialized"),
        (Ratio(value=float("nan")), "Ratio cannot be read from its JSON"),
        (
            "x" * MAX_RESULT_BYTES,
            f"has {MAX_RESULT_BYTES + 2} bytes, and may have {MAX_RESULT_BYTES}: set a2a_blob_url, so that",
        ),
    ],
    ids=["object", "keys", "nan", "list", "local", "field", "nan in a model", "large"],
)
async def test_a_result_that_cannot_be_recorded_is_a_clear_error(task: Task, value: Any, text: str) -> None:
    async def work() -> Any:
        return value

    async def agent(turn: Turn) -> str:
        with pytest.raises(StepError) as exc_info:
            await turn.step("work", work)
        return str(exc_info.value)

    assert text in await task.attempt(agent)


async def test_large_results_are_blobs_if_there_is_an_object_store(blob_setup: BlobSetup, keys: Keys) -> None:
    scene = Scene(Gate(blob_setup.store), keys, Seeds(blob_setup.store, keys))
    settings = replace(SETTINGS, blob_url=f"file://{blob_setup.folder}", task_max_bytes=4 * MAX_RESULT_BYTES)
    task, calls = Task(scene, settings), Calls()
    text, data = "x" * MAX_RESULT_BYTES, b"\x00\n" * MAX_RESULT_BYTES

    async def agent(turn: Turn) -> list[Any]:
        results = [await turn.step("text", give, calls, text)]
        with pytest.raises(LookupError):
            await turn.step("failure", fail, calls)
        results.append(await turn.step("data", give, calls, data))
        with pytest.raises(StepError, match="a2a_task_max_bytes"):
            await turn.step("too large", give, calls, text * 3)
        return results

    for _ in range(2):
        assert await task.attempt(agent) == [text, data]

    assert calls.made == ["give", "fail", "give", "give", "give"], "only the refused result is not recorded"
    assert len(blob_setup.blobs_of(f"{task.task_id}/journal-1")) == 3
    await scene.seeds.require_consistent(task.task_id)


async def give(calls: Calls, value: Any) -> Any:
    """Record the call and return `value`."""
    calls.made.append("give")
    return value


async def fail(calls: Calls) -> None:
    """Record the call and fail with a long text."""
    calls.made.append("fail")
    raise LookupError("y" * 5000)


async def test_the_results_of_a_turn_are_bounded_together(task: Task) -> None:
    async def work() -> str:
        return "x" * 900

    async def agent(turn: Turn) -> None:
        for _ in range(5):
            await turn.step("work", work)
        with pytest.raises(StepError, match="a2a_task_max_bytes"):
            await turn.step("work", work)

    await task.attempt(agent)


async def test_a_class_that_was_removed_ends_the_run(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> Inner:
        return Inner("x")

    async def agent(turn: Turn) -> None:
        await turn.step("work", work)

    await task.attempt(agent)
    monkeypatch.delitem(globals(), "Inner")

    with pytest.raises(StepsChanged, match="Inner of its result does not exist"):
        await task.attempt(agent)


class CustomError(Exception):
    """Error of a step."""


class OddError(Exception):
    """Error that cannot be created from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


async def test_a_failure_that_the_agent_handled_is_replayed(task: Task, calls: Calls) -> None:
    async def fails() -> None:
        calls.made.append("fails")
        raise CustomError("no page", 404)

    async def agent(turn: Turn) -> Any:
        try:
            await turn.step("fetch", fails)
        except CustomError as error:
            await turn.step("work", calls.work, "instead")
            return error.args

    assert await task.attempt(agent) == ("no page", 404)
    assert await task.attempt(agent) == ("no page", 404)
    assert calls.made == ["fails", "instead"]


async def test_a_failure_that_cannot_be_recorded_is_a_step_failed_in_each_run(task: Task, calls: Calls) -> None:
    async def fails() -> None:
        calls.made.append("fails")
        raise OddError(code=7)

    async def agent(turn: Turn) -> Any:
        try:
            await turn.step("fetch", fails)
        except StepFailed as error:
            await turn.step("work", calls.work, "instead")
            return error.step, error.class_name, error.text, str(error)

    failure = ("fetch", f"{__name__}.OddError", "code 7", f"step 'fetch' failed: {__name__}.OddError: code 7")
    assert await task.attempt(agent) == failure
    assert await task.attempt(agent) == failure
    assert calls.made == ["fails", "instead"]


@pytest.mark.parametrize("path", ["text", Path("text")])
async def test_a_failure_whose_text_is_not_unicode_is_recorded(task: Task, path: Any) -> None:
    async def fails() -> None:
        raise OSError("no file \udcff", path)  # an error with a path cannot be recreated

    async def agent(turn: Turn) -> Any:
        try:
            await turn.step("read", fails)
        except StepFailed as error:
            return error.text
        except OSError as error:
            return ascii(error.args[0])

    assert await task.attempt(agent) == (ascii("no file \udcff") if path == "text" else f"[Errno no file �] {path}")


class Shelf:
    """Object with a durable method."""

    def __init__(self, name: str) -> None:
        self.name = name

    @step
    async def read(self, page: int) -> str:
        return f"{self.name}, page {page}"


async def test_a_method_with_options_is_called_with_its_object(task: Task) -> None:
    async def agent(turn: Turn) -> Any:
        return await turn.step("read", Shelf("first").read, 2)

    assert await task.attempt(agent) == "first, page 2"


async def test_a_failure_that_ends_the_run_is_not_recorded(task: Task, calls: Calls) -> None:
    async def fails() -> None:
        calls.made.append("fails")
        raise CustomError

    async def agent(turn: Turn) -> None:
        await turn.step("work", calls.work, "before")
        await turn.step("fetch", fails)

    for _ in range(2):
        with pytest.raises(CustomError):
            await task.attempt(agent)

    assert calls.made == ["before", "fails", "fails"]


async def test_a_parallel_failure_that_ends_the_run_is_not_recorded(task: Task, calls: Calls) -> None:
    has_failed = asyncio.Event()

    async def fails() -> None:
        calls.made.append("fails")
        has_failed.set()
        raise CustomError

    async def call_after_failure(turn: Turn) -> None:
        await has_failed.wait()
        await turn.step("work", calls.work, "beside")

    async def agent(turn: Turn) -> None:
        results = await asyncio.gather(turn.step("fetch", fails), call_after_failure(turn), return_exceptions=True)
        raise next(error for error in results if isinstance(error, CustomError))

    for _ in range(2):
        with pytest.raises(CustomError):
            await task.attempt(agent)

    assert calls.made == ["fails", "beside", "fails"]


@pytest.mark.parametrize("name", ["antigravity:Fly", "this:d", "turtledemo.clock:Vec2D"])
def test_a_recorded_result_imports_no_module(name: str) -> None:
    module = name.partition(":")[0]
    assert module not in sys.modules

    for form in ("pydantic", "dataclass"):
        with pytest.raises(UnreadableResult, match="does not exist or is not loaded"):
            decode_result(f"{form} {name}", b"{}")
    with pytest.raises(UnreadableResult, match="is not loaded: import it at the top"):
        decode_failure(json.dumps({"class": name, "args": []}).encode())

    assert module not in sys.modules
