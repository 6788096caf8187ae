"""Folding of a log into a task, and encoding of events."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.struct_pb2 import Struct, Value

from a2a_celery.lifecycle import Event, EventKind, LogEntry, Retried, decode, encode, final_event, fold, kind_of
from a2a_celery.lifecycle.events import parts_of
from a2a_celery.lifecycle.fold import TaskFold, joined_texts
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CELERY_STATE, EXECUTION, MAX_ATTEMPTS, own_metadata
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from tests.support.store.seeds import chunk, status

FIRST = Task(id="t", context_id="c", status=TaskStatus(state=SUBMITTED))


def log(*events: Event, first: Event = FIRST) -> list[LogEntry]:
    """Return a log that starts with `first` and continues with `events`."""
    return [LogEntry(n, 1_000_000 * n, event) for n, event in enumerate([first, *events], 1)]


def message(text: str, role: Role = Role.ROLE_AGENT) -> Message:
    return Message(message_id=text, role=role, parts=[Part(text=text)])


def texts(messages: object) -> list[str]:
    return [message.parts[0].text for message in messages]  # type: ignore[attr-defined]


def test_a_task_is_itself_and_the_log_is_not_changed() -> None:
    entries = log(status(WORKING), chunk("a"))
    bytes_before = [encode(entry.event) for entry in entries]

    fold(entries)

    assert fold(log()) == FIRST
    assert [encode(entry.event) for entry in entries] == bytes_before


def test_a_status_replaces_the_status() -> None:
    task = fold(log(status(WORKING, "one")))

    assert (task.status.state, task.status.message.parts[0].text, list(task.history)) == (WORKING, "one", [])


def test_the_message_of_an_old_status_moves_into_the_history() -> None:
    task = fold(log(status(WORKING, "one"), status(WORKING), status(WORKING, "two"), status(COMPLETED, "three")))

    assert texts(task.history) == ["one", "two"]
    assert task.status.message.parts[0].text == "three"


def test_metadata_is_merged_key_by_key() -> None:
    task = fold(log(status(WORKING, a=1, b={"x": 1}), chunk("a"), status(WORKING, b={"y": 2}, c=None)))

    assert task.metadata == status(WORKING, a=1, b={"y": 2}, c=None).metadata


def test_metadata_about_a_wait_leaves_the_task_with_the_next_status() -> None:
    waiting = final_event(Retried(2, 4, "2030-01-01T08:00:00+00:00", "ConnectionError"), "t", "c")
    assert waiting is not None
    assert fold(log(waiting)).metadata == waiting.metadata

    task = fold(log(waiting, status(WORKING)))

    assert dict(task.metadata) == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 4})


@pytest.mark.parametrize("end", [COMPLETED, INPUT_REQUIRED])
def test_metadata_about_a_run_leaves_the_task_when_it_is_not_working_any_more(end: TaskState) -> None:
    progress = status(WORKING, step=1, **own_metadata({CELERY_STATE: "PROGRESS", EXECUTION: {"state": "MODEL_CALL"}}))
    assert fold(log(progress, status(WORKING))).metadata == progress.metadata

    task = fold(log(progress, status(end, **own_metadata({CELERY_STATE: "DONE"}))))

    assert dict(task.metadata) == {"step": 1} | own_metadata({CELERY_STATE: "DONE"})


def test_chunks_are_appended_in_order_with_their_metadata() -> None:
    task = fold(log(chunk("one ", x=1, y=1), chunk("other", "b"), chunk("two", y=2)))

    assert [artifact.artifact_id for artifact in task.artifacts] == ["a", "b"]
    assert [part.text for part in task.artifacts[0].parts] == ["one two"]
    assert dict(task.artifacts[0].metadata) == {"x": 1, "y": 2}


def test_an_artifact_that_is_sent_again_is_replaced_in_its_place() -> None:
    task = fold(log(chunk("one"), chunk("b", "b"), chunk("new", append=False)))

    assert [[part.text for part in artifact.parts] for artifact in task.artifacts] == [["new"], ["b"]]


@pytest.mark.parametrize("append", [False, True])
def test_the_first_chunk_of_an_artifact_is_its_beginning(append: bool) -> None:
    assert len(fold(log(chunk("a", append=append))).artifacts) == 1


def test_an_answer_completes_the_task_when_it_was_recorded() -> None:
    task = fold(log(message("42")))

    assert (task.status.state, task.status.message) == (COMPLETED, message("42"))
    assert task.status.timestamp.ToMicroseconds() == 2_000_000


def test_a_client_s_message_follows_the_question_in_the_history() -> None:
    task = fold(log(status(INPUT_REQUIRED, "which?"), message("this", Role.ROLE_USER)))

    assert texts(task.history) == ["which?", "this"]
    assert task.status.state == INPUT_REQUIRED
    assert not task.status.HasField("message")


def test_a_complete_task_replaces_everything() -> None:
    other = Task(id="t", context_id="c", status=TaskStatus(state=WORKING), history=[message("x")])

    task = fold(log(chunk("a"), status(WORKING, "one", a=1), other))

    assert task == other
    assert task is not other


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([], "the log is empty"),
        (log(first=status(WORKING)), "begins with a task, not with TaskStatusUpdateEvent"),
        (log(status(WORKING))[1:], "not continuous: version 2 follows version 0"),
        ([*log(), *log(status(WORKING), status(WORKING))[2:]], "not continuous: version 3 follows version 1"),
        ([*log(), *log()], "not continuous: version 1 follows version 1"),
    ],
)
def test_an_incomplete_log_is_refused(entries: list[LogEntry], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        fold(entries)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (FIRST, EventKind.TASK),
        (status(WORKING), EventKind.STATUS),
        (chunk("a"), EventKind.ARTIFACT),
        (message("m"), EventKind.AGENT_MESSAGE),
        (message("m", Role.ROLE_USER), EventKind.CLIENT_MESSAGE),
    ],
)
def test_an_event_survives_being_written_down(event: Event, kind: EventKind) -> None:
    assert decode(encode(event)) == event
    assert kind_of(decode(encode(event))) is kind


@pytest.mark.parametrize("call", [kind_of, encode])
def test_an_unknown_object_is_refused(call: object) -> None:
    with pytest.raises(TypeError, match="not an A2A event: TaskStatus"):
        call(TaskStatus())  # type: ignore[operator]


def test_a_status_has_the_time_it_was_recorded_and_nothing_else_has_one() -> None:
    late_event = decode(encode(status(WORKING)), 5_000_000)
    artifact = decode(encode(chunk("a")), 5_000_000)

    assert isinstance(late_event, TaskStatusUpdateEvent)
    assert isinstance(artifact, TaskArtifactUpdateEvent)
    assert late_event.status.timestamp.ToMicroseconds() == 5_000_000
    assert artifact == chunk("a")


def pieces(*contents: Any, append: bool = True) -> list[Event]:
    """Return a log's chunks of one artifact. A content is a text, a part, or a list of parts."""
    return [
        TaskArtifactUpdateEvent(
            task_id="t",
            context_id="c",
            artifact=Artifact(artifact_id="a", parts=parts_of(content)),
            append=append and position > 0,
        )
        for position, content in enumerate(contents)
    ]


DATA = Part(data=Value(number_value=1))
MARKDOWN = Part(text="# b", media_type="text/markdown")
NAMED = Part(text="b", filename="b.txt")
TYPED = Part(text="b", media_type="text/plain")
MARKED = Part(text="b", metadata=Struct(fields={"k": Value(string_value="v")}))


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (["a", "b", "c", ""], ["abc"]),
        (["", "a", ""], ["a"]),
        ([""], [""]),
        (["", ""], [""]),
        ([DATA, ""], [DATA]),
        (["", DATA], [DATA]),
        (["a", DATA, "b", "c", ""], ["a", DATA, "bc"]),
        ([[Part(text="title"), Part(text="a")], "b", [Part(text="c"), DATA], ""], ["title", "abc", DATA]),
        ([[Part(text="a"), Part(text="b")]], ["a", "b"]),
        (["a", MARKDOWN, MARKDOWN, "c"], ["a", MARKDOWN, MARKDOWN, "c"]),
        (["a", NAMED, "c"], ["a", NAMED, "c"]),
        (["a", MARKED, MARKED, "c"], ["a", MARKED, MARKED, "c"]),
        ([TYPED, TYPED, ""], [Part(text="bb", media_type="text/plain")]),
        (["a", TYPED], ["a", TYPED]),
    ],
)
def test_the_texts_of_consecutive_chunks_become_one_part(contents: list[Any], expected: list[Any]) -> None:
    [artifact] = fold(log(*pieces(*contents))).artifacts

    assert list(artifact.parts) == [Part(text=part) if isinstance(part, str) else part for part in expected]


def test_a_chunk_that_is_not_appended_begins_the_text_again() -> None:
    again = pieces("x", "y")

    assert [part.text for part in fold(log(*pieces("a", "b"), *again)).artifacts[0].parts] == ["xy"]


def test_a_fold_that_is_read_between_its_entries_is_the_same() -> None:
    entries = log(*pieces("a", "b", DATA, "c", "d", ""))
    task_fold = TaskFold()
    texts = []
    for entry in entries:
        task_fold.add(entry)
        assert task_fold.task is not None
        texts += ["".join(part.text for a in task_fold.task.artifacts for part in a.parts)]

    assert texts == ["", "a", "ab", "ab", "abc", "abcd", "abcd"]
    assert task_fold.task == fold(entries)


def test_parts_whose_chunks_are_unknown_are_joined() -> None:
    parts = [Part(text="a"), Part(text="b"), DATA, Part(text=""), MARKDOWN, Part(text="c"), Part(text="")]

    assert joined_texts(parts) == [Part(text="ab"), DATA, MARKDOWN, Part(text="c")]
