"""Printing of events on the terminal, where text chunks continue the current line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from a2a.types import (
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from a2a_celery.cli.output import EventPrinter, task_lines
from a2a_celery.lifecycle.outcomes import Failure, final_event
from a2a_celery.lifecycle.own_metadata import progress_metadata, retry_metadata, suspension_metadata
from a2a_celery.lifecycle.questions import schema_part
from a2a_celery.lifecycle.states import WORKING


def chunk(text: str, artifact: str = "story", *, append: bool = True) -> StreamResponse:
    parts = [Part(text=text)]
    update = TaskArtifactUpdateEvent(artifact=Artifact(artifact_id=artifact, parts=parts), append=append)
    return StreamResponse(artifact_update=update)


def status(state: str) -> StreamResponse:
    return StreamResponse(
        status_update=TaskStatusUpdateEvent(status=TaskStatus(state=TaskState.Value(f"TASK_STATE_{state}")))
    )


def print_events(*events: StreamResponse, as_lines: bool = False) -> None:
    printer = EventPrinter(as_lines=as_lines)
    for event in events:
        printer.show(event)
    printer.end_line()


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["Once", " upon", " a time"], "artifact story: Once upon a time\n"),
        (["one\n", "\n", "two\n"], "artifact story: one\n  \n  two\n"),
        (["one\r", "\ntwo"], "artifact story: one\n  two\n"),
        (["", "\x1b[2J"], "artifact story: \N{REPLACEMENT CHARACTER}[2J\n"),
        (["", ""], "artifact story\n"),
    ],
)
def test_chunks_continue_the_line(chunks: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = chunks
    print_events(chunk(first, append=False), *map(chunk, others))

    assert capsys.readouterr().out == text


def test_another_event_ends_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_events(
        *(chunk("Once", append=False), chunk(" upon")),
        *(status("WORKING"), chunk(" a time")),
        *(chunk("Twice", append=False), chunk("!", "end"), status("COMPLETED")),
    )

    assert capsys.readouterr().out.splitlines() == [
        *("artifact story: Once upon", "WORKING", "artifact story:  a time"),
        *("artifact story: Twice", "artifact end: !", "COMPLETED"),
    ]


def test_an_unchanged_state_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    submitted = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED))
    half = status("WORKING")
    half.status_update.status.message.parts.add(text="half")
    print_events(
        *(StreamResponse(task=submitted), status("SUBMITTED"), status("WORKING"), status("WORKING")),
        *(half, half, status("WORKING"), chunk("Once", append=False), status("WORKING"), chunk(" upon")),
        *(status("INPUT_REQUIRED"), status("WORKING"), status("COMPLETED")),
    )

    assert capsys.readouterr().out.splitlines() == [
        *("task t (context c)", "SUBMITTED", "WORKING", "WORKING: half", "WORKING: half", "artifact story: Once upon"),
        *("INPUT_REQUIRED", "WORKING", "COMPLETED"),
    ]


def activity(metadata: Mapping[str, Any], state: str = "WORKING") -> StreamResponse:
    event = status(state)
    event.status_update.metadata.update(metadata)
    return event


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        (progress_metadata("PROGRESS", {"step": 2, "of": 5}), "step 2 of 5"),
        (progress_metadata("PROGRESS", {"current": 2, "total": 5}), "current 2 of 5"),
        (
            progress_metadata("PROGRESS", {"file": "\x1b", "n": [1], "of": 2}),
            "file \N{REPLACEMENT CHARACTER}, n [1], of 2",
        ),
        (progress_metadata("PROGRESS", "half"), "meta half"),
        (progress_metadata("UPLOADING", {"file": "a"}), "UPLOADING file a"),
        (progress_metadata("UPLOADING", None), "UPLOADING"),
        (progress_metadata("PROGRESS", {"text": "x" * 300}), f"text {'x' * 194}…"),
        (retry_metadata(2, 3, "", ""), "attempt 2 of 3"),
        (retry_metadata(2, None, "", "Timeout"), "attempt 2"),
        (retry_metadata(2, 3, "2026-11-29T01:11:26+00:00", ""), "attempt 2 of 3 at 2026-11-29 01:11:26 UTC"),
        (suspension_metadata("", "approval"), "waits for the signal approval"),
        (suspension_metadata("", "child/7a"), "waits for the child task 7a"),
        (suspension_metadata("2026-11-29T01:11:26+00:00", ""), "continues at 2026-11-29 01:11:26 UTC"),
    ],
)
def test_an_activity_is_printed_when_it_changes(
    metadata: Mapping[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_events(
        *(status("SUBMITTED"), status("WORKING"), activity(metadata), activity(metadata), status("WORKING")),
        *(activity(metadata), activity(metadata, "COMPLETED")),
    )

    lines = ["SUBMITTED", "WORKING", f"WORKING: {line}", f"WORKING: {line}", "COMPLETED"]
    assert capsys.readouterr().out.splitlines() == lines


def test_metadata_of_an_agent_is_no_activity(capsys: pytest.CaptureFixture[str]) -> None:
    print_events(status("WORKING"), activity({"step": 2, "of": 5}))

    assert capsys.readouterr().out == "WORKING\n"


def test_an_activity_follows_the_message_of_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    event = activity(retry_metadata(2, 3, "", ""))
    event.status_update.status.message.parts.add(text="half")

    print_events(event)

    assert capsys.readouterr().out == "WORKING: half (attempt 2 of 3)\n"


def test_a_repeated_task_shows_its_new_activity(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [Task(id="t", context_id="c", status=TaskStatus(state=WORKING)) for _ in range(3)]
    for task in tasks[1:]:
        task.metadata.update(progress_metadata("PROGRESS", {"step": 2, "of": 5}))

    print_events(*(StreamResponse(task=task) for task in tasks))

    assert capsys.readouterr().out.splitlines() == ["task t (context c)", "WORKING", "WORKING: step 2 of 5"]


def test_a_failure_shows_its_reference(capsys: pytest.CaptureFixture[str]) -> None:
    failure = final_event(Failure(reference="0123456789ab"), "t", "c")
    assert isinstance(failure, TaskStatusUpdateEvent)

    print_events(StreamResponse(status_update=failure))

    assert capsys.readouterr().out == "FAILED: The agent failed. [reference 0123456789ab]\n"


class TestRepeatedTask:
    """A subscription starts with the current task, which may contain what has been printed before."""

    def task(self, state: str, *artifacts: Artifact) -> StreamResponse:
        task_status = status(state).status_update.status
        return StreamResponse(task=Task(id="t", context_id="c", status=task_status, artifacts=artifacts))

    def story(self, *chunks: str) -> Artifact:
        return Artifact(artifact_id="story", parts=[Part(text=text) for text in chunks])

    def size(self, width: int) -> Artifact:
        return Artifact(artifact_id="size", parts=[Part(data=ParseDict({"width": width}, Value()))])

    @pytest.mark.parametrize(
        ("repeated", "rest"),
        [(["Once"], " upon a time"), (["Once", " upon"], " a time"), (["Once upon"], " a time")],
    )
    def test_text_continues(self, repeated: list[str], rest: str, capsys: pytest.CaptureFixture[str]) -> None:
        print_events(
            *(self.task("WORKING", self.story("Once")), self.task("WORKING", self.story(*repeated))),
            *(chunk(rest), status("COMPLETED")),
        )

        assert capsys.readouterr().out.splitlines() == [
            *("task t (context c)", "WORKING", "artifact story: Once upon a time", "COMPLETED"),
        ]

    def test_only_changes_are_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_events(
            self.task("WORKING", self.story("Once"), self.size(1)),
            self.task("WORKING", self.story("Once"), self.size(2)),
            self.task("COMPLETED", self.story("Twice"), self.size(3), Artifact(artifact_id="end")),
            self.task("COMPLETED", self.story("Twice"), self.size(3), Artifact(artifact_id="end")),
        )

        assert capsys.readouterr().out.splitlines() == [
            *("task t (context c)", "WORKING", "artifact story: Once"),
            *('artifact size: {"width": 1}', 'artifact size: {"width": 2}'),
            *("artifact story: Twice", 'artifact size: {"width": 3}', "artifact end", "COMPLETED"),
        ]

    def test_another_task_is_printed_whole(self, capsys: pytest.CaptureFixture[str]) -> None:
        other = self.task("WORKING", self.story("Once"))
        other.task.id = "u"

        print_events(self.task("WORKING", self.story("Once")), other)

        assert capsys.readouterr().out.splitlines() == [
            *("task t (context c)", "WORKING", "artifact story: Once"),
            *("task u (context c)", "WORKING", "artifact story: Once"),
        ]

    def test_json_repeats_the_task(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_events(*[self.task("WORKING", self.story("Once"))] * 2, as_lines=True)

        first, second = capsys.readouterr().out.splitlines()
        assert first == second


def test_json_has_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    print_events(chunk("Once", append=False), chunk(" upon"), status("WORKING"), status("WORKING"), as_lines=True)

    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["statusUpdate" in event for event in events] == [False, False, True, True]
    updates = [event["artifactUpdate"] for event in events[:2]]
    assert [update["artifact"]["parts"] for update in updates] == [[{"text": "Once"}], [{"text": " upon"}]]


def test_json_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\u009b2J\x7f\u202e\x1b\U000e0001 é"

    print_events(chunk(text), as_lines=True)

    output = capsys.readouterr().out.removesuffix("\n")
    assert output.isprintable()
    assert "é" in output
    assert json.loads(output)["artifactUpdate"]["artifact"]["parts"] == [{"text": text}]


def test_ids_are_printed_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_events(StreamResponse(task=Task(id="\x1b[2J", context_id="c\r")))

    replacement = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == f"task {replacement}[2J (context c{replacement})\nUNSPECIFIED\n"


def test_whole_numbers_of_data_are_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    data = ParseDict({"width": 300, "ratio": 1.5, "sizes": [1, 2]}, Value())

    print_events(
        StreamResponse(artifact_update=TaskArtifactUpdateEvent(artifact=Artifact(name="size", parts=[Part(data=data)])))
    )

    output = capsys.readouterr().out.removeprefix("artifact size: ")
    assert sorted(json.loads(output)) == ["ratio", "sizes", "width"]
    assert '"width": 300' in output
    assert '"sizes": [1, 2]' in output
    assert ".0" not in output


@pytest.mark.parametrize(
    ("signal", "when", "line"),
    [
        ("", "2026-11-29T01:11:26.435670+00:00", "continues at 2026-11-29 01:11:26 UTC"),
        ("approval", "", "waits for the signal approval"),
        ("", "2026-11-29T03:11:26+02:00", "continues at 2026-11-29 01:11:26 UTC"),
        ("approval", "2026-11-29T01:11:26.435670+00:00", "times out at 2026-11-29 01:11:26 UTC"),
        ("child/7a", "", "waits for the child task 7a"),
    ],
)
def test_a_suspended_task_names_what_it_waits_for(signal: str, when: str, line: str) -> None:
    task = Task(id="1", status=TaskStatus(state=WORKING), metadata=suspension_metadata(when, signal))

    assert task_lines(task).splitlines()[-1] == line


@pytest.mark.parametrize(
    ("types", "line"),
    [
        (["object", "string"], "INPUT_REQUIRED: Approve book(what='hotel')? (yes or no)"),
        ("object", "INPUT_REQUIRED: Approve book(what='hotel')? (yes or no) (answer: c2)"),
    ],
)
def test_the_fields_of_an_answer_are_named_unless_it_may_be_a_word(
    types: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": types, "properties": {"c2": {"type": "boolean"}}}
    parts = [Part(text="Approve book(what='hotel')? (yes or no)"), schema_part(schema)]
    status = TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED, message=Message(parts=parts))
    print_events(StreamResponse(status_update=TaskStatusUpdateEvent(task_id="t", status=status)))
    assert capsys.readouterr().out.splitlines() == [line]
