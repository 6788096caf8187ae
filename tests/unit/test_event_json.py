"""JSON encoding of events, which must equal the SDK's encoding for every field of an event."""

from __future__ import annotations

import json

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
from a2a.utils.json_utils import dumps
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value

from a2a_celery.gateway.bindings.json_results import event_json
from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.events import timestamp

JSON = {"null": None, "yes": True, "half": 0.5, "whole": 3.0, "big": 1e300, "list": [1, "two", [], {}], "in": {"": "ü"}}

PARTS = [
    Part(text='"quoted"\r\n\t\\ \x00 ä 漢 🙂'),
    Part(text="", metadata=ParseDict(JSON, Struct())),
    Part(raw=b"\x00\xff<>&", filename="f.bin", media_type="application/octet-stream"),
    Part(url="https://example.com/?a=b&c=d"),
    Part(data=ParseDict(JSON, Value())),
    Part(data=Value(null_value=0)),  # type: ignore[arg-type]
    Part(data=Value(list_value=ParseDict([1, None], Value()).list_value)),
    Part(),
]
MESSAGE = Message(
    message_id="m",
    task_id="t",
    context_id="c",
    role=Role.ROLE_AGENT,
    parts=PARTS,
    metadata=ParseDict(JSON, Struct()),
    extensions=["one", "two"],
    reference_task_ids=["r"],
)
ARTIFACT = Artifact(
    artifact_id="a", name="n", description="d", parts=PARTS, metadata=ParseDict(JSON, Struct()), extensions=["e"]
)
STATUS = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=MESSAGE, timestamp=timestamp(1_700_000_000_123_000))
EVENTS: list[Event] = [
    Task(),
    Task(id="t", context_id="c", status=STATUS, history=[MESSAGE, MESSAGE], artifacts=[ARTIFACT, Artifact()]),
    Task(id="t", metadata=Struct(), status=TaskStatus(timestamp=timestamp(1_000))),
    Message(),
    MESSAGE,
    TaskStatusUpdateEvent(),
    TaskStatusUpdateEvent(task_id="t", context_id="c", status=STATUS, metadata=ParseDict(JSON, Struct())),
    TaskStatusUpdateEvent(status=TaskStatus(state=99)),  # type: ignore[arg-type]  # from a later protocol version
    TaskArtifactUpdateEvent(),
    TaskArtifactUpdateEvent(task_id="t", artifact=ARTIFACT, append=True, last_chunk=True, metadata=Struct()),
    TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="a", parts=[Part(text="1 ")]), append=True),
]


@pytest.mark.parametrize("event", EVENTS)
def test_it_is_what_the_sdk_writes(event: Event) -> None:
    text, sdk_text = event_json(event), dumps(MessageToDict(to_stream_response(event)))

    assert json.loads(text) == json.loads(sdk_text)
    assert sorted(text) == sorted(sdk_text)  # the texts differ only in the order of keys


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\n", "\r"])
def test_an_event_is_one_line_for_all_parsers(end: str) -> None:
    event = TaskArtifactUpdateEvent(artifact=Artifact(parts=[Part(text=f"a{end}b")]))

    text = event_json(event)

    assert len(text.splitlines()) == 1
    assert json.loads(text) == MessageToDict(to_stream_response(event))
