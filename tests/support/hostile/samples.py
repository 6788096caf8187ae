"""Valid requests of each operation and binding, and invalid headers, paths and methods."""

from __future__ import annotations

from typing import Any

from a2a.compat.v0_3 import a2a_v0_3_pb2 as v03
from google.protobuf.message import Message

PART = {"text": "hello", "metadata": {"a": 1}}
MESSAGE = {
    "messageId": "m",
    "contextId": "c",
    "taskId": "t",
    "role": "ROLE_USER",
    "parts": [
        PART,
        {"data": {"b": [1, None]}},
        {"raw": "AAAA", "mediaType": "image/png"},
        {"url": "https://x.example"},
    ],
    "metadata": {"k": "v"},
    "extensions": ["https://example.com/x"],
    "referenceTaskIds": ["r"],
}
HOOK = {"id": "c", "url": "https://hooks.example.com/a", "token": "t", "authentication": {"scheme": "Bearer"}}
SEND = {
    "tenant": "",
    "message": {name: value for name, value in MESSAGE.items() if name != "taskId"},
    "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 3, "returnImmediately": True},
    "metadata": {"k": {"n": 1.5}},
}
LISTED = {
    "contextId": "c",
    "status": "TASK_STATE_WORKING",
    "pageSize": 10,
    "pageToken": "",
    "historyLength": 0,
    "statusTimestampAfter": "2026-01-01T00:00:00Z",
    "includeArtifacts": True,
}
GOOD: dict[str, dict[str, Any]] = {
    "SendMessage": SEND,
    "SendStreamingMessage": SEND,
    "GetTask": {"id": "t", "historyLength": 2, "tenant": ""},
    "ListTasks": LISTED,
    "CancelTask": {"id": "t", "metadata": {"why": "so"}},
    "SubscribeToTask": {"id": "t"},
    "GetExtendedAgentCard": {"tenant": ""},
    "CreateTaskPushNotificationConfig": {"taskId": "t", **HOOK},
    "GetTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
    "ListTaskPushNotificationConfigs": {"taskId": "t", "pageSize": 2, "pageToken": "x"},
    "DeleteTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
}
SEND_03 = {
    "message": {
        "kind": "message",
        "messageId": "m",
        "contextId": "c",
        "role": "user",
        "parts": [
            {"kind": "text", "text": "hello"},
            {"kind": "data", "data": {"a": 1}},
            {"kind": "file", "file": {"bytes": "AAAA", "mimeType": "text/plain"}},
        ],
        "metadata": {"k": "v"},
    },
    "configuration": {"blocking": False, "acceptedOutputModes": ["text/plain"], "historyLength": 1},
}
GOOD_03: dict[str, dict[str, Any]] = {
    "message/send": SEND_03,
    "message/stream": SEND_03,
    "tasks/get": {"id": "t", "historyLength": 2},
    "tasks/cancel": {"id": "t"},
    "tasks/resubscribe": {"id": "t"},
    "tasks/pushNotificationConfig/set": {"taskId": "t", "pushNotificationConfig": HOOK},
    "tasks/pushNotificationConfig/get": {"id": "t", "pushNotificationConfigId": "c"},
    "tasks/pushNotificationConfig/list": {"id": "t"},
    "tasks/pushNotificationConfig/delete": {"id": "t", "pushNotificationConfigId": "c"},
    "agent/getAuthenticatedExtendedCard": {},
}
REST_03 = [
    ("POST", "/v1/message:send", {"request": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}}),
    ("POST", "/v1/message:stream", {"request": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}}),
    ("GET", "/v1/tasks/{id}", {"historyLength": 1}),
    ("GET", "/v1/tasks", {"pageSize": 1}),
    ("POST", "/v1/tasks/{id}:cancel", {}),
    ("GET", "/v1/tasks/{id}:subscribe", {}),
    ("POST", "/v1/tasks/{id}/pushNotificationConfigs", {"config": {"pushNotificationConfig": HOOK}}),
    ("GET", "/v1/tasks/{id}/pushNotificationConfigs/{config}", {}),
    ("DELETE", "/v1/tasks/{id}/pushNotificationConfigs/{config}", {}),
    ("GET", "/v1/card", {}),
]
GRPC_03: dict[str, tuple[type[Message], dict[str, Any]]] = {
    "SendMessage": (v03.SendMessageRequest, {"request": {"messageId": "m", "role": "ROLE_USER"}}),
    "SendStreamingMessage": (v03.SendMessageRequest, {"request": {"messageId": "m", "role": "ROLE_USER"}}),
    "GetTask": (v03.GetTaskRequest, {"name": "tasks/t"}),
    "CancelTask": (v03.CancelTaskRequest, {"name": "tasks/t"}),
    "TaskSubscription": (v03.TaskSubscriptionRequest, {"name": "tasks/t"}),
    "GetAgentCard": (v03.GetAgentCardRequest, {}),
}
OWN_PATHS = [
    ("POST", "/tasks/{id}:signal", {"name": "approval", "payload": {"by": ["Ann", None]}, "signalId": "s"}),
    ("GET", "/families/{id}", {"tenant": ""}),
    ("GET", "/webhooks/{id}/{config}/deliveries", {}),
    ("POST", "/webhooks/{id}/{config}/deliveries:replay", {}),
    ("POST", "/webhooks/{id}/{config}/deliveries/1-1:replay", {}),
    ("POST", "/webhooks/{id}/{config}:ping", {}),
]
"""Operations of the gateway that are not part of A2A."""
OPERATOR_PATHS = [
    ("GET", "/operator/v1/overview", {}),
    ("GET", "/operator/v1/tasks", {"phase": "suspended", "cursor": "0"}),
    ("GET", "/operator/v1/tasks/{id}", {}),
    ("GET", "/operator/v1/dead-letters", {"cursor": "0"}),
    ("POST", "/operator/v1/dead-letters/{id}:requeue", {}),
    ("GET", "/operator/v1/webhooks", {"state": "dead", "cursor": "0"}),
    ("POST", "/operator/v1/webhooks/{id}/{config}:replay", {}),
    ("GET", "/operator/v1/workers", {}),
    ("GET", "/ui/agents.json", {}),
    ("GET", "/ui/inbox.json", {}),
]
"""Operations of the operator API and the operator's page."""
STREAMS = ("SendStreamingMessage", "SubscribeToTask", "TaskSubscription")
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "get", "P\x00ST")
ELSEWHERE = (
    "/", "//", "/health/live", "/metrics", "/.well-known/agent-card.json", "/agents/echo", "/agents/nobody/tasks",
    "/..%2f..%2fetc/passwd", "/%00", "/agents/%2e%2e/tasks", "/openapi.json", "/docs", "*", "http://other.example/",
    "/tasks/%ff%fe", "/tasks/x%2Fy", "/tasks/" + "x" * 5000, "/a/b/c/d", "/tasks/;drop", "/?" + "a=b&" * 500,
)  # fmt: skip
CONTENT_TYPES = (
    b"application/json", b"application/a2a+json", b"", b"text/plain", b"application/json; charset=utf-16",
    b"multipart/form-data; boundary=x", b"application/x-www-form-urlencoded", b"application/grpc", b"\xff", b"x" * 3000,
)  # fmt: skip
HEADERS = (
    (b"A2A-Version", (b"", b"0.3", b"9.9", b"1.0, 0.3", b"\xef\xbc\x91.0", b"1" * 4000, b"1.0.0", b"-1")),
    (b"A2A-Extensions", (b"", b",,,", b"https://a.example," * 300, b"\xff\xfe", b"a b c")),
    (b"Last-Event-ID", (b"0", b"-1", b"1.5", b"9" * 400, b"\xf0\x28", b"x", b"")),
    (b"Content-Encoding", (b"gzip", b"br", b"identity", b"\x80")),
    (b"Transfer-Encoding", (b"chunked", b"gzip, chunked", b"xchunked")),
    (b"Content-Length", (b"0", b"3", b"-1", b"99999999999999999999", b"1e3", b"+5")),
    (b"Expect", (b"100-continue", b"x")),
    (b"Host", (b"", b"other.example", b"a b", b"[::1", b"\xff", b"x" * 4000)),
    (b"Upgrade", (b"websocket", b"h2c")),
    (b"Accept", (b"text/event-stream", b"x/y;q=9")),
    (b"Authorization", (b"Bearer " + b"x" * 9000, b"Basic \xff", b"")),
    (b"traceparent", (b"00-" + b"0" * 32 + b"-0000000000000000-01", b"zz")),
    (b"X-Odd", (b"a\x00b", b"a\rb", b"\x7f", b"x" * 70_000)),
)
METADATA: tuple[tuple[str, str | bytes], ...] = (
    ("a2a-version", "9.9"), ("a2a-version", ""), ("a2a-version", "1" * 2000), ("a2a-extensions", "," * 900),
    ("a2a-extensions", "https://a.example"), ("x-bin", b"\x00\xff" * 50), ("traceparent", "zz"),
    ("last-event-id", "-1"),
    ("authorization", "Bearer " + "x" * 4000), ("grpc-timeout-odd", "1n"),
)  # fmt: skip
SPLICED = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
