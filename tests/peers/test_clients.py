"""Clients of other libraries and older versions with two gateways, two workers and an unmodified AgentExecutor.

Every client executes the same steps (clients/steps.py, clients/steps.mjs), with the results in `TABLE`. Tasks begin at
the first gateway and continue at the second.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_peers
from tests.support.processes.fleet import Gateway
from tests.support.receivers.receiver import ReceivedPost, Receiver
from tests.support.waiting import eventually

from .environments import program

CLIENTS = Path(__file__).parent / "clients"
TOKEN = "chosen-by-the-client"

TABLE: dict[str, Any] = {
    "card": ["Sample Agent", True, True],
    "send": ["COMPLETED", "hello"],
    "stream": ["COMPLETED", "0 1 2 "],
    "ask": ["INPUT_REQUIRED", "Which colour?"],
    "answer": ["COMPLETED", "blue it is", True],
    "fail": ["FAILED", "The agent failed."],
    "get": ["COMPLETED", "hello"],
    "cancel": "CANCELED",
    "subscribe": "CANCELED",
    "list": [True],
    "webhook": "COMPLETED",
    "webhooks": ["/task", "CANCELED"],
    "delete_webhook": [],
    "unknown": "TaskNotFound",
    "too_late": "TaskNotCancelable",
}
"""Expected result of each step. For webhooks, it is the last posted state."""


@dataclass(frozen=True)
class Peer:
    """Client of another library, and its bindings.

    Attributes:
        sees: Results that differ from `TABLE`, by binding.
        lacks: Steps that are not possible, each with the reason.
    """

    script: str
    environment: str
    bindings: tuple[str, ...]
    sees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)


NO_LIST = {"list": "protocol 0.3 has no ListTasks over JSON-RPC and gRPC"}
ONLY_TALKS = dict.fromkeys(
    ("get", "cancel", "subscribe", "list", "webhook", "webhooks", "delete_webhook", "unknown", "too_late"),
    "the client sends messages and reads answers",
)
PEERS = [
    Peer("with_sdk_1.py", "sdk-1", ("JSONRPC", "HTTP+JSON", "GRPC")),
    Peer(
        "with_sdk_0_3.py",
        "sdk-0.3",
        ("JSONRPC", "HTTP+JSON", "GRPC"),
        sees={
            "JSONRPC": {"unknown": "-32001", "too_late": "-32002"},
            "HTTP+JSON": {"unknown": "404", "too_late": "400"},
            "GRPC": {"unknown": "NOT_FOUND", "too_late": "FAILED_PRECONDITION"},
        },
        lacks={**NO_LIST, "delete_webhook": "the client has no method for it"},
    ),
    Peer("with_a2a_js_1.mjs", "node", ("JSONRPC", "HTTP+JSON")),
    Peer("with_a2a_js_0_3.mjs", "node", ("JSONRPC", "HTTP+JSON"), lacks=NO_LIST),
    Peer("with_adk.py", "sdk-1", ("JSONRPC",), lacks={"card": "the client keeps it to itself", **ONLY_TALKS}),
    Peer(
        "with_agent_framework.py",
        "sdk-1",
        ("JSONRPC", "HTTP+JSON"),
        # The client shows the last message of the history instead of the status message, which contains the error.
        sees={binding: {"fail": ["FAILED", "fail"]} for binding in ("JSONRPC", "HTTP+JSON")},
        lacks=ONLY_TALKS,
    ),
    Peer(
        "with_strands.py",
        "sdk-0.3",
        ("JSONRPC",),
        # The client shows the reason why a turn stopped instead of the state.
        sees={
            "JSONRPC": {
                "send": ["end_turn", "hello"],
                "stream": ["end_turn", "0 1 2 "],
                "ask": ["interrupt", "Which colour?"],
                "fail": ["end_turn", "The agent failed."],
            }
        },
        lacks={"answer": "the client sends no id of a task or context", **ONLY_TALKS},
    ),
]


@pytest.mark.parametrize(
    ("peer", "binding"),
    [pytest.param(peer, binding, id=f"{peer.script}-{binding}") for peer in PEERS for binding in peer.bindings],
)
def test_a_client_sees_what_every_client_sees(
    peer: Peer, binding: str, gateways: tuple[Gateway, Gateway], hooks: Receiver, tmp_path: Path
) -> None:
    require_peers(peer.environment)
    path = f"/{tmp_path.name}"

    saw = run(peer, gateways, hooks.url(path), binding)

    if "webhook" in saw:
        saw["webhook"] = last_state(hooks, f"{path}/message", saw["webhook"])
    if "webhooks" in saw:
        shown, task_id = saw["webhooks"]
        saw["webhooks"] = [shown, last_state(hooks, f"{path}/task", task_id)]
        assert not any(b"ancel" in post.body for post in hooks.requests(f"{path}/deleted"))
    expected = {**TABLE, **peer.sees.get(binding, {})}
    assert saw == {step: value for step, value in expected.items() if step not in peer.lacks}


def run(peer: Peer, gateways: tuple[Gateway, Gateway], hook: str, binding: str) -> dict[str, Any]:
    """Run the peer's client and return the result of each step."""
    ports = [address.rpartition(":")[2] for gateway in gateways for address in (gateway.url, gateway.grpc)]
    command = [program(peer.environment), str(CLIENTS / peer.script), *(g.url for g in gateways), hook, binding, *ports]
    process = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert process.returncode == 0, process.stderr
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    return {line["step"]: line["saw"] for line in lines}


def last_state(hooks: Receiver, path: str, task_id: str) -> str:
    """Wait until a terminal state of the task has been posted to the webhook, and return that state."""

    def terminal() -> str:
        states = [state for post in hooks.requests(path) if (state := state_of(post, task_id))]
        return states[-1] if states and states[-1] in ("COMPLETED", "CANCELED", "FAILED") else ""

    post = eventually(terminal, what=f"the end of {task_id} is posted to {path}")
    assert {post.headers["x-a2a-notification-token"] for post in hooks.requests(path)} == {TOKEN}
    return post


def state_of(post: ReceivedPost, task_id: str) -> str:
    """Return the state in a post, or "" if the post has no state. A body of 0.3 is a task, or an update with its
    kind."""
    body = json.loads(post.body)
    event = body.get("task") or body.get("statusUpdate") or body.get("artifactUpdate") or body
    assert event.get("taskId", event.get("id")) == task_id
    state: str = event.get("status", {}).get("state", "")
    return state.removeprefix("TASK_STATE_").upper()
