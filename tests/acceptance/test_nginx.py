"""nginx with compose/nginx.conf in front of a gateway. nginx forwards requests without buffering, and hides the paths
for operators."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.conftest import require_nginx
from tests.support.clients.bindings import V1, message_json
from tests.support.processes.fleet import Fleet, Gateway, free_port
from tests.support.waiting import LIMIT, eventually

CONF = Path(__file__).parents[2] / "compose" / "nginx.conf"
CONNECTIONS = 256
KEY = {"X-API-Key": "key"}


@dataclass
class Nginx:
    """Running nginx with compose/nginx.conf.

    Attributes:
        url: Address of the HTTP server.
        grpc: Address of the gRPC server.
        folder: Folder in which nginx writes files.
    """

    url: str
    grpc: str
    folder: Path


@pytest.fixture
def gateway(fleet: Fleet) -> Gateway:
    return fleet.gateway(
        grpc=True, A2A_AUTH_API_KEYS=f"ann:sha256:{sha256(b'key').hexdigest()}", A2A_UI="on", A2A_OPERATORS="ann"
    )


@pytest.fixture
def nginx(gateway: Gateway, tmp_path: Path) -> Iterator[Nginx]:
    require_nginx()
    port, grpc_port = free_port(), free_port()
    text = re.sub(r"resolver [^;]*;", "", CONF.read_text())
    for old, new in {
        "http://$gateway:8000": gateway.url,
        "grpc://$gateway:50051": f"grpc://{gateway.grpc}",
        "listen 8000;": f"listen 127.0.0.1:{port};",
        "listen 50051 http2;": f"listen 127.0.0.1:{grpc_port} http2;",
        "/tmp/": f"{tmp_path}/",
        "access_log /dev/stdout;": "access_log off;",
        "worker_processes 2;": "worker_processes 1;\ndaemon off;",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    process = subprocess.Popen(["nginx", "-e", "/dev/stderr", "-c", str(tmp_path / "nginx.conf")])
    server = Nginx(f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}", tmp_path)
    eventually(lambda: _status(f"{server.url}/health/live") == 200, what="nginx reaches the gateway")
    yield server
    process.terminate()
    process.wait()


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.HTTPError:
        return 0


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/health/ready", "/ui", "/ui/", "/ui/agents.json", "/ui/inbox.json", "/%6detrics", "//metrics"),
        *("/operator/v1/overview", "/operator/v1/dead-letters", "/%6fperator/v1/tasks", "//operator//v1/tasks"),
    ],
)
def test_what_is_for_operators_is_not_passed_on(nginx: Nginx, gateway: Gateway, path: str) -> None:
    assert httpx.get(f"{nginx.url}{path}", headers=KEY).status_code == 404
    for known_path in ("/metrics", "/operator/v1/overview"):
        assert httpx.get(f"{gateway.url}{known_path}", headers=KEY).status_code == 200, "the gateway itself says it"


def test_a_body_goes_to_the_gateway_as_it_comes_and_nowhere_else(nginx: Nginx) -> None:
    """An unauthenticated request is refused before its body is complete, and nginx writes no body to a file."""
    host, _, port = nginx.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(30)
        head = f"POST /message:send HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9000000\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + b" " * 100_000)

        assert connection.recv(12) == b"HTTP/1.1 401"

    assert not [path for path in nginx.folder.rglob("*") if path.is_file() and path.stat().st_size > 50_000]


def test_an_address_has_so_many_connections_and_no_more(nginx: Nginx) -> None:
    host, _, port = nginx.url.removeprefix("http://").partition(":")
    head = f"POST /message:send HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\nX-API-Key: key\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(head)

        eventually(lambda: _status(f"{nginx.url}/health/live") == 429, what="the address has all of its connections")

    eventually(lambda: _status(f"{nginx.url}/health/live") == 200, what="they are free again")


def test_a_message_and_a_large_one_come_through(fleet: Fleet, nginx: Nginx) -> None:
    fleet.worker()
    for text in ("hello", "x" * 5_000_000):
        answer = httpx.post(f"{nginx.url}/message:send", json=message_json(text), headers=V1 | KEY, timeout=LIMIT)
        assert answer.status_code == 200, answer.text
        assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
