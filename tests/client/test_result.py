"""Results of every state and of unusual responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery.client import Result, input_requests, state_name, stop_reason_of
from a2a_celery.client.result import STOP_REASONS, ResultBuilder
from a2a_celery.lifecycle import INTERRUPTED, TERMINAL

RETRY_AFTER_JITTER = 42


def message(text: str) -> Message:
    return Message(message_id="m", role=Role.ROLE_AGENT, task_id="t", context_id="c", parts=[Part(text=text)])


def task(state: int, status_text: str = "", *artifacts: str) -> Task:
    """Return a task in `state` with the status text `status_text`."""
    status = TaskStatus(state=state, message=message(status_text) if status_text else None)  # type: ignore[arg-type]
    parts = [Artifact(artifact_id=text, parts=[Part(text=text)]) for text in artifacts]
    return Task(id="t", context_id="c", status=status, artifacts=parts)


def status(state: int, status_text: str = "") -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id="t", context_id="c", status=task(state, status_text).status)


def chunk(text: str, name: str = "a", *, append: bool = True) -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id=name, parts=[Part(text=text)])
    return TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact, append=append)


class TestStates:
    def test_every_state_has_a_meaning(self) -> None:
        assert set(STOP_REASONS) == set(TaskState.values())

    def test_the_meanings_are_those_of_the_lifecycle(self) -> None:
        assert {state for state, reason in STOP_REASONS.items() if reason == "end_turn"} == TERMINAL
        assert {state for state, reason in STOP_REASONS.items() if reason == "interrupt"} == INTERRUPTED

    @pytest.mark.parametrize("state", [*TaskState.values(), RETRY_AFTER_JITTER])
    def test_a_result_has_the_state(self, state: int) -> None:
        asks = ["it"] if state in INTERRUPTED else []

        for answer in (task(state, "it"), status(state, "it")):
            result = Result.of(answer)
            assert result.stop_reason == stop_reason_of(state)
            assert result.state == state
            assert result.text == "it"
            assert [part.text for part in input_requests(answer)] == asks
            assert [part.text for part in input_requests(result)] == asks
            assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result

    def test_a_state_of_a_later_version_is_not_final_and_keeps_its_number(self) -> None:
        result = Result.of(Task.FromString(task(RETRY_AFTER_JITTER).SerializeToString()))

        assert (result.state, result.state_name, result.stop_reason) == (RETRY_AFTER_JITTER, "STATE_42", None)
        assert Result.of(MessageToDict(result.raw)).state == RETRY_AFTER_JITTER  # type: ignore[arg-type]

    def test_an_unknown_state_name_is_unspecified(self) -> None:
        result = Result.of({"id": "t", "status": {"state": "TASK_STATE_DREAMING"}})

        assert (result.state, result.state_name, result.stop_reason) == (0, "UNSPECIFIED", None)

    def test_names(self) -> None:
        assert [state_name(state) for state in (3, 0, None)] == ["COMPLETED", "UNSPECIFIED", ""]


class TestWhatThereIsToRead:
    def test_a_direct_message_is_the_end(self) -> None:
        result = Result.of(message("hello"))

        assert (result.stop_reason, result.state, result.text) == ("end_turn", None, "hello")
        assert (result.task_id, result.context_id) == ("t", "c")
        assert result.artifacts == []

    def test_the_text_of_a_completed_task_is_that_of_its_artifacts(self) -> None:
        result = Result.of(task(TaskState.TASK_STATE_COMPLETED, "bye", "one", "two"))

        assert result.text == "one\ntwo"
        assert [part.text for part in result.parts] == ["one", "two"]
        assert result.message is not None

    @pytest.mark.parametrize("name", ["FAILED", "CANCELED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED"])
    def test_the_text_of_another_end_is_its_reason(self, name: str) -> None:
        result = Result.of(task(TaskState.Value(f"TASK_STATE_{name}"), "because", "half"))

        assert result.text == "because"
        assert [artifact.artifact_id for artifact in result.artifacts] == ["half"]

    @pytest.mark.parametrize("name", ["FAILED", "CANCELED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED"])
    def test_the_text_of_an_end_without_a_message_is_that_of_its_artifacts(self, name: str) -> None:
        result = Result.of(task(TaskState.Value(f"TASK_STATE_{name}"), "", "half", "more"))

        assert result.text == "half\nmore"
        assert [part.text for part in result.parts] == ["half", "more"]
        assert result.message is None

    def test_chunks_of_an_artifact_have_no_seam(self) -> None:
        result = Result.of(
            StreamResponse(task=task(TaskState.TASK_STATE_SUBMITTED)),
            StreamResponse(artifact_update=chunk("Hel", append=False)),
            StreamResponse(artifact_update=chunk("lo")),
            StreamResponse(artifact_update=chunk("you", "b")),
            StreamResponse(status_update=status(TaskState.TASK_STATE_COMPLETED)),
        )

        assert result.text == "Hello\nyou"
        assert len(result.artifacts) == 2

    def test_an_artifact_sent_again_takes_the_place_of_the_first(self) -> None:
        assert Result.of(chunk("draft", append=False), chunk("final", append=False)).text == "final"

    def test_a_stream_may_begin_without_its_task(self) -> None:
        result = Result.of(chunk("a"), status(TaskState.TASK_STATE_COMPLETED))

        assert (result.task_id, result.context_id, result.text) == ("t", "c", "a")

    def test_parts_without_text_are_parts_too(self) -> None:
        answered_task = task(TaskState.TASK_STATE_COMPLETED)
        answered_task.artifacts.add(artifact_id="f", parts=[Part(raw=b"\x00", filename="f.bin")])

        result = Result.of(answered_task)

        assert (result.text, [part.raw for part in result.parts]) == ("", [b"\x00"])
        assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result

    def test_collected_results_are_not_shared(self) -> None:
        first, builder = task(TaskState.TASK_STATE_WORKING), ResultBuilder()
        builder.add(first)
        early = builder.result()
        builder.add(chunk("x"))

        assert (len(first.artifacts), len(early.artifacts), len(builder.result().artifacts)) == (0, 0, 1)


NOTHING: list[Any] = [
    None,
    {},
    [],
    "text",
    7,
    StreamResponse(),
    SendMessageResponse(),
    {"result": None},
    {"result": {}},
    {"task": None},
    {"message": None},
    {"statusUpdate": None, "artifactUpdate": None},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32001}},
]

EMPTY: list[Any] = [
    Task(),
    Message(),
    {"task": {}},
    {"task": {"id": None, "status": None, "artifacts": None, "history": None, "metadata": None}},
    {"id": "t", "status": {"state": None, "message": None}},
    {"id": "t", "status": {"message": {"parts": None}}},
    {"id": "t", "artifacts": [None]},
    {"id": "t", "artifacts": [{"artifactId": "a", "parts": None}, {"parts": [None]}, {"parts": [{"text": None}]}]},
    {"id": "t", "artifacts": {}, "history": "x", "metadata": [], "status": "done"},
    {"message": {"parts": None, "messageId": "m"}},
    {"messageId": "m", "parts": [None, {"text": None}]},
    {"parts": "text"},
    {"artifactUpdate": {"artifact": None}},
    {"taskId": "t", "artifact": {"parts": None}},
    {"taskId": "t", "status": None},
    {"statusUpdate": {"status": {"message": {"parts": None}}}},
    {"kind": "task"},
    {"kind": "task", "id": "t", "contextId": None, "status": None, "artifacts": [{"parts": None}]},
    {"kind": "message", "parts": None},
    {"kind": "status-update", "taskId": "t"},
    {"kind": "status-update", "taskId": "t", "status": {"state": ["working"]}},
    {"kind": "artifact-update", "artifact": {"artifactId": "a"}},
    {"kind": "task", "artifacts": [{"parts": [{"kind": "nonsense"}]}]},
    {"result": {"task": {"status": {}}}},
]


@pytest.mark.parametrize("artifacts", [(), ("form",)])
@pytest.mark.parametrize(
    ("state", "text"),
    [
        (TaskState.TASK_STATE_INPUT_REQUIRED, "The agent needs your input to continue."),
        (TaskState.TASK_STATE_AUTH_REQUIRED, "The agent needs an authorization to continue."),
    ],
)
def test_a_pause_without_words_still_asks(state: TaskState, text: str, artifacts: tuple[str, ...]) -> None:
    paused_task = task(state, "", *artifacts)

    for answer in (paused_task, Result.of(paused_task), TaskStatusUpdateEvent(task_id="t", status=paused_task.status)):
        assert [part.text for part in input_requests(answer)] == [text]


@pytest.mark.parametrize("answer", NOTHING + EMPTY, ids=repr)
def test_an_answer_without_content_is_an_empty_result(answer: Any) -> None:
    result = Result.of(answer)

    assert (result.text, result.parts) == ("", [])
    assert input_requests(answer) == []
    assert result.stop_reason in {None, "end_turn"}
    assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    if answer in NOTHING:
        assert result == Result()
        assert (result.state, result.task_id, result.context_id, result.message) == (None, "", "", None)


@pytest.mark.parametrize(
    "text",
    [
        '{"task": {"id": "t", "status": {"state": 1e400}}}',
        '{"task": {"id": "t", "status": {"state": "\\ud800"}}}',
        '{"messageId": "m", "role": -1e400}',
        '{"task": {"id": "t", "metadata": {"a": NaN, "b": [{"c": 1e400}]}}}',
        '{"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}, "metadata": {"a": [NaN]}}',
        '{"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": -Infinity}]}',
        '{"task": {"id": "t", "metadata": ' + '{"a":' * 900 + "1" + "}" * 902,
    ],
    ids=lambda text: text[:60],
)
def test_json_that_few_have_thought_of_is_read_and_saved_all_the_same(text: str) -> None:
    result = Result.of(json.loads(text))

    saved_json = json.dumps(result.to_dict(), allow_nan=False)
    assert Result.from_dict(json.loads(saved_json)).task_id == result.task_id


def test_a_wrong_field_leaves_the_other_fields_unchanged() -> None:
    artifact = {"artifactId": "a", "parts": [{"text": "the answer"}], "metadata": {"n": {"x": 1, "y": [1, 2]}}}
    right = {
        "id": "t",
        "status": {"state": "TASK_STATE_COMPLETED", "message": {"messageId": "m", "parts": [{"data": [1, [2, 3]]}]}},
        "artifacts": [artifact, artifact],
        "metadata": {"tags": ["a", "b", "c"], "fields": 1, "empty": []},
    }
    status: dict[str, Any] = {**right["status"], "timestamp": 5}  # type: ignore[dict-item]
    status["message"] = {**status["message"], "role": [], "referenceTaskIds": [{}]}
    parts = [{"text": 5, "mediaType": "text/plain"}, *artifact["parts"], 5]
    wrong = {
        **right,
        "contextId": {},
        "status": status,
        "artifacts": [{**artifact, "name": 7, "parts": parts}, 5, {"parts": 5}, artifact],
        "history": 5,
    }

    assert Result.of(wrong) == Result.of(right)
    assert Result.of({"task": wrong}) == Result.of(right)


def test_a_wrong_field_of_version_0_3_leaves_the_other_fields_unchanged() -> None:
    text, data = {"kind": "text", "text": "the answer"}, {"kind": "data", "data": {"n": [1, 2]}}
    file = {"kind": "file", "file": {"uri": "http://example.com/a"}}
    artifact = {"artifactId": "a", "parts": [text, data, file], "metadata": {"n": {"x": 1}}}
    message = {"messageId": "m", "role": "agent", "parts": [text]}
    status = {"state": "completed", "message": message}
    right = {"kind": "task", "id": "t", "status": status, "artifacts": [artifact, artifact], "history": [message]}
    wrong_text, wrong_file = {**text, "metadata": 5}, {**file, "file": {**file["file"], "name": 7}, "metadata": []}  # type: ignore[dict-item]
    parts = [5, {**text, "text": 5}, wrong_text, {"kind": "odd"}, data, wrong_file, {"kind": "data"}]
    wrong_status = {**status, "timestamp": "now", "message": {**message, "role": "odd", "taskId": []}}
    wrong = {
        **right,
        "contextId": {},
        "status": wrong_status,
        "artifacts": [{**artifact, "name": 7, "parts": parts}, 5, artifact],
        "history": [{**message, "parts": [text, {"kind": "text"}], "extensions": 5}, "text"],
        "metadata": ["text"],
    }
    update = {"kind": "status-update", "taskId": "t", "status": status}
    artifact_update = {"kind": "artifact-update", "taskId": "t", "artifact": artifact}

    assert Result.of(right).text == "the answer\nthe answer"
    assert Result.of(wrong) == Result.of(right)
    assert Result.of({**update, "status": wrong_status, "final": "odd", "metadata": 5}) == Result.of(update)
    assert Result.of({**artifact_update, "append": [], "artifact": wrong["artifacts"][0]}) == Result.of(artifact_update)
    assert Result.of({**message, "kind": "message", "metadata": "text"}) == Result.of({**message, "kind": "message"})
    assert Result.of({**right, "status": 5}).state_name == "UNSPECIFIED"


def test_a_null_in_data_is_a_value() -> None:
    data = {"row": [1, None, 2], "none": None}
    part = ParseDict({"data": data, "metadata": {"none": None}}, Part())
    result = Result.of(Task(id="t", artifacts=[Artifact(artifact_id="a", parts=[part])]))

    assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert Result.of({"messageId": "m", "parts": [{"data": data, "metadata": {"none": None}}]}).parts == [part]


@pytest.mark.parametrize("state", ["INPUT_REQUIRED", "FAILED", "COMPLETED"])
def test_readable_parts_are_kept_beside_unreadable_ones(state: str) -> None:
    fields = {
        "task": {
            "id": "t",
            "artifacts": [None, {"artifactId": "a", "parts": [{"text": "kept"}, {"text": 7}]}, "x"],
            "status": {"state": f"TASK_STATE_{state}", "message": "not a message", "extra": None},
        }
    }

    result = Result.of(fields)

    assert (result.state_name, result.task_id) == (state, "t")


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ("submitted", "SUBMITTED"),
        ("working", "WORKING"),
        ("input-required", "INPUT_REQUIRED"),
        ("auth-required", "AUTH_REQUIRED"),
        ("completed", "COMPLETED"),
        ("failed", "FAILED"),
        ("canceled", "CANCELED"),
        ("rejected", "REJECTED"),
        ("unknown", "UNSPECIFIED"),
        ("of-a-later-version", "UNSPECIFIED"),
    ],
)
def test_the_shapes_of_version_0_3(state: str, name: str) -> None:
    message = {"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "it"}]}
    complete_task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": state, "message": message}}
    update = {
        "kind": "status-update",
        "taskId": "t",
        "contextId": "c",
        "status": complete_task["status"],
        "final": False,
    }

    for answer in (complete_task, update, {"jsonrpc": "2.0", "id": 1, "result": complete_task}):
        result = Result.of(answer)
        assert (result.state_name, result.text, result.task_id, result.context_id) == (name, "it", "t", "c")
    artifact = {"artifactId": "a", "parts": [{"kind": "text", "text": "made"}]}
    artifact_update = {"kind": "artifact-update", "taskId": "t", "contextId": "c", "artifact": artifact}
    assert [part.text for a in Result.of(complete_task, artifact_update).artifacts for part in a.parts] == ["made"]
    assert Result.of(message).text == "it"


@pytest.mark.parametrize(
    "data",
    [None, {}, [], "x", {"version": 2, "task": None, "message": None}, {"version": 1}, {"version": 1, "task": {}},
     {"version": 1, "task": "x", "message": None}, {"version": 1, "task": None, "message": [1]}],
    ids=repr,
)  # fmt: skip
def test_garbage_is_no_saved_result(data: Any) -> None:
    with pytest.raises(ValueError, match="result"):
        Result.from_dict(data)


def test_a_saved_result_can_be_read_without_this_class() -> None:
    saved_data = Result.of(task(TaskState.TASK_STATE_INPUT_REQUIRED, "How many?")).to_dict()

    assert saved_data["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    del saved_data["task"]
    assert saved_data == {
        "version": 1,
        "stop_reason": "interrupt",
        "state": TaskState.TASK_STATE_INPUT_REQUIRED,
        "state_name": "INPUT_REQUIRED",
        "task_id": "t",
        "context_id": "c",
        "text": "How many?",
        "message": None,
    }
