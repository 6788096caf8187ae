"""Translation of an agent's events into log entries, with a test for each row of the table in events/translator."""

from __future__ import annotations

import math
from typing import Any

import pytest
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.struct_pb2 import Struct, Value

from a2a_celery.execution.events.translator import Translator
from a2a_celery.lifecycle import LEGAL, LogEntry, apply
from a2a_celery.lifecycle.events import parts_of
from a2a_celery.lifecycle.outcomes import CANCELED_BY_AGENT, NEEDS_AUTHORIZATION, NEEDS_INPUT
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    SUBMITTED,
    WORKING,
)
from tests.support.store.seeds import chunk, status

UNSPECIFIED = TaskState.TASK_STATE_UNSPECIFIED


def translator(state: TaskState = SUBMITTED, *, answer: bool = True, artifacts: tuple[str, ...] = ()) -> Translator:
    """Return a translator for a task in `state`."""
    task = Task(id="t", context_id="c", status=TaskStatus(state=state))
    task.artifacts.extend(Artifact(artifact_id=artifact_id) for artifact_id in artifacts)
    return Translator(task, message_allowed=answer)


def agent_message(text: str = "hi") -> Message:
    """Return an incomplete message, as an agent may send."""
    return Message(role=Role.ROLE_USER, task_id="another", parts=[Part(text=text)])


def shape(events: list[Any]) -> list[object]:
    """Return the state or artifact id of each event."""
    return [e.status.state if isinstance(e, TaskStatusUpdateEvent) else e.artifact.artifact_id for e in events]


@pytest.mark.parametrize("state", [SUBMITTED, UNSPECIFIED])
def test_submitted_again_is_ignored(state: TaskState) -> None:
    assert translator().translate(status(state)) == []


@pytest.mark.parametrize(
    "event", [status(SUBMITTED, "queued"), status(SUBMITTED, position=3), status(UNSPECIFIED, "x")]
)
def test_submitted_with_something_new_is_working(event: TaskStatusUpdateEvent) -> None:
    assert shape(translator().translate(event)) == [WORKING]


def test_working_again_without_changes_is_ignored() -> None:
    event_translator = translator()

    assert shape(event_translator.translate(status(WORKING))) == [WORKING]
    assert event_translator.translate(status(WORKING)) == []
    assert shape(event_translator.translate(status(WORKING, "busy"))) == [WORKING]
    assert shape(event_translator.translate(status(WORKING, step=1))) == [WORKING]


@pytest.mark.parametrize("parts", [[], [Part()]], ids=["no parts", "empty part"])
def test_a_message_without_parts_is_left_out(parts: list[Part]) -> None:
    event_translator = translator(WORKING)
    message = Message(message_id="m", parts=parts)
    empty_event = TaskStatusUpdateEvent(status=TaskStatus(state=COMPLETED, message=message))
    busy_event = TaskStatusUpdateEvent(status=TaskStatus(state=WORKING, message=message))

    assert event_translator.translate(busy_event) == []
    [event] = event_translator.translate(empty_event)

    assert isinstance(event, TaskStatusUpdateEvent)
    assert not event.status.HasField("message")


@pytest.mark.parametrize("event_type", ["status", "artifact", "answer", "task"])
def test_a_part_without_content_is_left_out(event_type: str) -> None:
    parts = [Part(), Part(text="x"), Part(media_type="image/png")]
    message, artifact = Message(message_id="m", parts=parts), Artifact(artifact_id="a", parts=parts)
    failed = TaskStatus(state=FAILED, message=message)
    event: Any = {
        "status": TaskStatusUpdateEvent(status=failed),
        "artifact": TaskArtifactUpdateEvent(artifact=artifact),
        "answer": message,
        "task": Task(status=failed, artifacts=[artifact]),
    }[event_type]

    for translated_event in translator(WORKING).translate(event):
        match translated_event:
            case TaskArtifactUpdateEvent():
                translated_parts = translated_event.artifact.parts
            case TaskStatusUpdateEvent():
                translated_parts = translated_event.status.message.parts
            case _:
                translated_parts = translated_event.parts  # type: ignore[union-attr]
        assert list(translated_parts) == [Part(text="x")]


@pytest.mark.parametrize("parts", [[], [Part()]], ids=["no parts", "empty part"])
def test_an_artifact_without_content_has_an_empty_text(parts: list[Part]) -> None:
    event_translator = translator(WORKING, artifacts=("a",))
    end = TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="a", parts=parts), append=True, last_chunk=True)

    [event] = event_translator.translate(end)

    assert isinstance(event, TaskArtifactUpdateEvent)
    assert list(event.artifact.parts) == [Part(text="")]
    assert event.last_chunk


@pytest.mark.parametrize("parts", [[], [Part()], [Part(text=" ")]], ids=["no parts", "empty part", "blank text"])
@pytest.mark.parametrize(
    ("state", "text"),
    [(INPUT_REQUIRED, NEEDS_INPUT), (AUTH_REQUIRED, NEEDS_AUTHORIZATION), (CANCELED, CANCELED_BY_AGENT)],
)
def test_a_pause_and_a_cancel_without_words_say_why(state: TaskState, text: str, parts: list[Part]) -> None:
    silent_event = TaskStatusUpdateEvent(status=TaskStatus(state=state, message=Message(message_id="m", parts=parts)))

    for event in (silent_event, status(state), Task(status=silent_event.status)):
        [translated_event] = translator(WORKING).translate(event)

        assert isinstance(translated_event, TaskStatusUpdateEvent)
        assert [part.text for part in translated_event.status.message.parts] == [text]
        assert (translated_event.status.message.role, translated_event.status.message.task_id) == (Role.ROLE_AGENT, "t")
        assert translated_event.status.message.message_id


def test_a_pause_without_a_text_has_its_data() -> None:
    data = Part(data=Value(string_value="form"))
    pause = TaskStatusUpdateEvent(status=TaskStatus(state=INPUT_REQUIRED, message=Message(parts=[data])))

    [event] = translator(WORKING).translate(pause)

    assert isinstance(event, TaskStatusUpdateEvent)
    assert list(event.status.message.parts) == [data]


def test_a_requested_cancel_leaves_the_text_of_the_status_to_the_store() -> None:
    event_translator = translator(WORKING)
    event_translator.ask_to_cancel()

    [event] = event_translator.translate(status(CANCELED))

    assert isinstance(event, TaskStatusUpdateEvent)
    assert not event.status.HasField("message")


@pytest.mark.parametrize("parts", [[], [Part()]], ids=["no parts", "empty part"])
def test_an_answer_without_parts_is_ignored(parts: list[Part]) -> None:
    [event] = translator().translate(Message(message_id="m", parts=parts))

    assert isinstance(event, TaskStatusUpdateEvent)
    assert event.status.state == COMPLETED
    assert not event.status.HasField("message")


@pytest.mark.parametrize("end", [status(COMPLETED), status(FAILED, "no"), agent_message()])
def test_a_run_with_a_cancel_request_can_only_end_canceled(end: Any) -> None:
    event_translator = translator()
    event_translator.ask_to_cancel()

    assert event_translator.translate(end) == []
    assert shape(event_translator.translate(chunk("a"))) == [WORKING, "a"]
    assert shape(event_translator.translate(status(CANCELED, "stopped"))) == [CANCELED]


def test_working_after_a_pause_is_shown() -> None:
    event_translator = translator(WORKING)

    assert shape(event_translator.translate(status(INPUT_REQUIRED)) + event_translator.translate(status(WORKING))) == [
        INPUT_REQUIRED,
        WORKING,
    ]


def test_a_task_becomes_its_artifacts_metadata_and_status() -> None:
    task = Task(id="t", context_id="c", status=TaskStatus(state=COMPLETED))
    task.artifacts.extend([chunk("a").artifact, chunk("b", "b").artifact])
    task.metadata.update({"cost": 3})

    events = translator().translate(task)

    assert shape(events) == [WORKING, "a", "b", COMPLETED]
    assert dict(events[-1].metadata) == {"cost": 3}  # type: ignore[union-attr]


def test_a_submitted_task_is_ignored() -> None:
    assert translator().translate(Task(id="t", context_id="c", status=TaskStatus(state=SUBMITTED))) == []


def test_an_artifact_before_any_status_brings_working() -> None:
    event_translator = translator()

    assert shape(event_translator.translate(chunk("a"))) == [WORKING, "a"]
    assert shape(event_translator.translate(chunk("b"))) == ["a"]


def test_a_chunk_of_an_unknown_artifact_is_its_beginning() -> None:
    event_translator = translator(WORKING, artifacts=("earlier",))

    flags = [event_translator.translate(event)[0].append for event in (chunk("1"), chunk("2"), chunk("3", "earlier"))]  # type: ignore[union-attr]

    assert flags == [False, True, True]


def test_an_artifact_without_an_id_gets_one() -> None:
    [event] = translator(WORKING).translate(TaskArtifactUpdateEvent(artifact=Artifact(parts=[Part(text="x")])))

    assert isinstance(event, TaskArtifactUpdateEvent)
    assert event.artifact.artifact_id


def test_a_first_message_is_the_answer() -> None:
    event_translator = translator()

    [event] = event_translator.translate(agent_message())

    assert isinstance(event, Message)
    assert (event.role, event.task_id, event.context_id) == (Role.ROLE_AGENT, "", "c")
    assert event.message_id
    assert event_translator.state == COMPLETED


@pytest.mark.parametrize("first_event", [status(WORKING), chunk("a")])
def test_a_message_later_completes_the_task(first_event: Any) -> None:
    event_translator = translator()
    event_translator.translate(first_event)

    [event] = event_translator.translate(agent_message())

    assert isinstance(event, TaskStatusUpdateEvent)
    assert event.status.state == event_translator.state == COMPLETED
    assert (event.status.message.role, event.status.message.task_id) == (Role.ROLE_AGENT, "t")


def test_a_first_message_without_permission_to_answer_completes_the_task() -> None:
    assert shape(translator(answer=False).translate(agent_message())) == [COMPLETED]


def test_an_ignored_event_does_not_prevent_an_answer() -> None:
    event_translator = translator()
    event_translator.translate(status(SUBMITTED))

    assert isinstance(event_translator.translate(agent_message())[0], Message)


def test_another_task_s_ids_become_this_one_s() -> None:
    event_translator = translator()
    foreign = status(WORKING, "busy")
    foreign.task_id, foreign.context_id = "another", "elsewhere"
    foreign.status.message.task_id = "another"
    artifact = chunk("a")
    artifact.task_id = "another"

    events = (
        event_translator.translate(foreign) + event_translator.translate(artifact) + event_translator.status(FAILED)
    )

    assert {(event.task_id, event.context_id) for event in events} == {("t", "c")}  # type: ignore[union-attr]
    assert events[0].status.message.task_id == "t"  # type: ignore[union-attr]
    assert foreign.task_id == "another", "the agent's own event was changed"


def bad_values() -> list[Any]:
    """Return events that each contain a number without a JSON form, in each possible field."""
    part = Part(data=Value(number_value=math.nan))
    message = Message(message_id="m", parts=[part])
    in_status = status(WORKING)
    in_status.status.message.CopyFrom(message)
    whole_task = Task(status=TaskStatus(state=WORKING))
    whole_task.metadata.fields["x"].number_value = math.inf
    events: list[Any] = [message, in_status, whole_task]
    for place in ("metadata", "artifact.metadata"):
        event = chunk("a")
        holder = event
        for name in place.split("."):
            holder = getattr(holder, name)
        holder.fields["x"].number_value = -math.inf  # type: ignore[attr-defined]
        events.append(event)
    in_part = chunk("a")
    in_part.artifact.parts.append(part)
    events.append(in_part)
    on_status = status(WORKING)
    on_status.metadata.fields["x"].struct_value.fields["deep"].number_value = math.nan
    return [*events, on_status]


@pytest.mark.parametrize("event", bad_values())
def test_values_without_a_json_form_are_refused(event: Any) -> None:
    with pytest.raises(InvalidAgentResponseError, match="JSON"):
        translator().translate(event)


@pytest.mark.parametrize("event", bad_values())
def test_a_refused_event_changes_nothing(event: Any) -> None:
    event_translator, fresh = translator(), translator()
    with pytest.raises(InvalidAgentResponseError):
        event_translator.translate(event)

    assert (event_translator.state, event_translator.spoken) == (fresh.state, fresh.spoken)
    assert shape(event_translator.translate(chunk("a"))) == shape(fresh.translate(chunk("a")))


def deep_events(levels: int) -> list[Any]:
    """Return events that each contain `levels` nested objects, in each possible field."""
    value = Value(number_value=1)
    for _ in range(levels):
        value = Value(struct_value=Struct(fields={"a": value}))
    struct, data = Struct(fields={"k": value}), Part(data=value)
    events: list[Any] = []
    for part in (data, Part(text="a", metadata=struct)):
        message = Message(message_id="m", parts=[part])
        events += [message, TaskStatusUpdateEvent(status=TaskStatus(state=WORKING, message=message))]
        events += [TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="a", parts=[part]))]
    message, artifact = Message(parts=[Part(text="a")], metadata=struct), Artifact(artifact_id="a", metadata=struct)
    events += [message, TaskStatusUpdateEvent(status=TaskStatus(state=WORKING, message=message))]
    events += [TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=struct)]
    events += [TaskArtifactUpdateEvent(artifact=artifact), TaskArtifactUpdateEvent(metadata=struct)]
    return [*events, Task(metadata=struct), Task(artifacts=[artifact]), Task(status=TaskStatus(message=message))]


@pytest.mark.parametrize("event", deep_events(30))
def test_the_deepest_values_can_be_decoded_in_a_task(event: Any) -> None:
    for entry in translator().translate(event):
        task = apply(Task(id="t", status=TaskStatus(state=WORKING)), LogEntry(2, 1, entry))
        assert StreamResponse.FromString(StreamResponse(task=task).SerializeToString()).task == task


@pytest.mark.parametrize("event", deep_events(31))
def test_values_that_are_nested_too_deeply_are_refused(event: Any) -> None:
    with pytest.raises(InvalidAgentResponseError, match="nested too deeply"):
        translator().translate(event)


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    data: Any = 1
    for _ in range(31):
        data = {"a": data}

    with pytest.raises(InvalidAgentResponseError, match="nested too deeply"):
        parts_of(data)
    assert len(parts_of(data["a"])) == 1


def test_an_unknown_object_is_refused() -> None:
    with pytest.raises(InvalidAgentResponseError, match="not an A2A event: str"):
        translator().translate("hello")  # type: ignore[arg-type]


@pytest.mark.parametrize("state_before", [SUBMITTED, WORKING, INPUT_REQUIRED])
@pytest.mark.parametrize("state_after", [state for state in TaskState.values() if state])
def test_translated_events_are_always_legal(state_before: TaskState, state_after: TaskState) -> None:
    state = state_before

    for event in translator(state_before).translate(status(state_after, "x")):
        assert isinstance(event, TaskStatusUpdateEvent)
        assert event.status.state in LEGAL[state]
        state = event.status.state
