"""nginx and Envoy with their configurations in compose/ in front of a gateway. Both forward requests and streams
without buffering, and hide the paths for operators."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

import httpx
import pytest

from tests.conftest import envoy_path, require_envoy, require_nginx
from tests.support.clients.bindings import V1, frames, message_json
from tests.support.clients.operation_calls import ask
from tests.support.processes.fleet import Gateway, free_port, running_fleet
from tests.support.waiting import LIMIT, eventually

COMPOSE = Path(__file__).parents[2] / "compose"
CONNECTIONS = 256
KEY = {"X-API-Key": "key"}
OWN_ADDRESS = "127.0.0.1"


@dataclass
class Proxy:
    """Running proxy with its configuration in compose/.

    Attributes:
        url: Address of the HTTP server.
        grpc: Address of the gRPC server.
        folder: Folder in which the proxy may write files.
        refusal: Status of a response to a connection above the limit, or 0 if the proxy closes the connection.
    """

    url: str
    grpc: str
    folder: Path
    refusal: int


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Gateway of a fleet with a worker."""
    keys = f"ann:sha256:{sha256(b'key').hexdigest()}"
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.worker()
        yield fleet.gateway(grpc=True, A2A_AUTH_API_KEYS=keys, A2A_UI="on", A2A_OPERATORS="ann")


def with_replacements(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def start_nginx(gateway: Gateway, folder: Path, port: int, grpc_port: int) -> subprocess.Popen[bytes]:
    replacements = {
        "http://$gateway:8000": gateway.url,
        "grpc://$gateway:50051": f"grpc://{gateway.grpc}",
        "listen 8000;": f"listen {OWN_ADDRESS}:{port};",
        "listen 50051 http2;": f"listen {OWN_ADDRESS}:{grpc_port} http2;",
        "/tmp/": f"{folder}/",
        "access_log /dev/stdout;": "access_log off;",
        "worker_processes 2;": "worker_processes 1;\ndaemon off;",
    }
    text = re.sub(r"resolver [^;]*;", "", (COMPOSE / "nginx.conf").read_text())
    (folder / "nginx.conf").write_text(with_replacements(text, replacements))
    return subprocess.Popen(["nginx", "-e", "/dev/stderr", "-c", str(folder / "nginx.conf")])


def start_envoy(gateway: Gateway, folder: Path, port: int, grpc_port: int) -> subprocess.Popen[bytes]:
    http_upstream, grpc_upstream = (
        "address: {}, port_value: {}".format(*address.rsplit(":", 1))
        for address in (gateway.url.removeprefix("http://"), gateway.grpc)
    )
    replacements = {
        "address: gateway, port_value: 8000": http_upstream,
        "address: gateway, port_value: 50051": grpc_upstream,
        "address: 0.0.0.0, port_value: 8000": f"address: {OWN_ADDRESS}, port_value: {port}",
        "address: 0.0.0.0, port_value: 50051": f"address: {OWN_ADDRESS}, port_value: {grpc_port}",
        "max_active_downstream_connections: 4096": f"max_active_downstream_connections: {CONNECTIONS}",
        "request_headers_timeout: 15s": "request_headers_timeout: 1s",
    }
    (folder / "envoy.yaml").write_text(with_replacements((COMPOSE / "envoy" / "envoy.yaml").read_text(), replacements))
    options = ["--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    return subprocess.Popen([str(envoy_path()), "-c", str(folder / "envoy.yaml"), *options], cwd=folder)


PROXIES: dict[str, tuple[Callable[[], None], Callable[..., subprocess.Popen[bytes]], int]] = {
    "nginx": (require_nginx, start_nginx, 429),
    "envoy": (require_envoy, start_envoy, 0),
}


@pytest.fixture(scope="module", params=PROXIES)
def proxy(
    request: pytest.FixtureRequest, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    require, start, refusal = PROXIES[request.param]
    require()
    folder, port, grpc_port = tmp_path_factory.mktemp(request.param), free_port(), free_port()
    process = start(gateway, folder, port, grpc_port)
    proxy = Proxy(f"http://{OWN_ADDRESS}:{port}", f"{OWN_ADDRESS}:{grpc_port}", folder, refusal)
    try:
        eventually(lambda: _status(f"{proxy.url}/health/live") == 200, what=f"{request.param} reaches the gateway")
        yield proxy
    finally:
        process.terminate()
        process.wait()


only_envoy = pytest.mark.parametrize("proxy", ["envoy"], indirect=True)


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.HTTPError:
        return 0


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(30)
    return connection


PATHS_FOR_OPERATORS = [
    *("/metrics", "/health/ready", "/ui", "/ui/", "/ui/agents.json", "/ui/inbox.json", "/%6detrics", "//metrics"),
    *("/operator/v1/overview", "/operator/v1/dead-letters", "/%6fperator/v1/tasks", "//operator//v1/tasks"),
    *("/operator%2Fv1/overview", "/operator%2fv1/tasks", "/agents/../metrics", "/health/./ready"),
]


def test_what_is_for_operators_is_not_passed_on(proxy: Proxy, gateway: Gateway) -> None:
    statuses = {path: raw_status(proxy, path) for path in PATHS_FOR_OPERATORS}

    assert statuses == dict.fromkeys(PATHS_FOR_OPERATORS, 404)
    for known_path in ("/metrics", "/operator/v1/overview", "/operator%2Fv1/overview"):
        assert httpx.get(f"{gateway.url}{known_path}", headers=KEY).status_code == 200, "the gateway itself says it"


def raw_status(proxy: Proxy, path: str) -> int:
    """Return the status of the response for a path that is not normalized."""
    with connect(proxy) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nX-API-Key: key\r\nConnection: close\r\n\r\n".encode())
        return int(connection.recv(12).split()[1])


def test_a_body_goes_to_the_gateway_as_it_comes_and_nowhere_else(proxy: Proxy) -> None:
    """An unauthenticated request is refused before its body is complete, and the proxy writes no body to a file."""
    with connect(proxy) as connection:
        head = "POST /message:send HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + b" " * 100_000)

        assert connection.recv(12) == b"HTTP/1.1 401"

    assert not [path for path in proxy.folder.rglob("*") if path.is_file() and path.stat().st_size > 50_000]


def test_the_gateway_knows_the_address_of_a_client(proxy: Proxy, gateway: Gateway) -> None:
    """A client cannot pretend to have another address."""
    address, claimed_address = "127.0.0.2", "203.0.113.9"

    def refusals() -> int:
        return gateway.output().count(f"(GET /agents/echo/tasks from {address} over http)")

    earlier_refusals = refusals()
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as client:
        headers = V1 | {"X-Forwarded-For": claimed_address}
        assert client.get(f"{proxy.url}/agents/echo/tasks", headers=headers).status_code == 401

    eventually(lambda: refusals() > earlier_refusals, what="the gateway logs the address")
    assert claimed_address not in gateway.output()


def test_the_number_of_connections_is_limited(proxy: Proxy) -> None:
    """nginx limits the connections of an address, and Envoy all connections."""
    head = b"POST /message:send HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nX-API-Key: key\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connect(proxy)).sendall(head)

        eventually(lambda: _status(f"{proxy.url}/health/live") == proxy.refusal, what="all connections are in use")

    eventually(lambda: _status(f"{proxy.url}/health/live") == 200, what="they are free again")


def test_a_message_and_a_large_one_come_through(proxy: Proxy) -> None:
    for text in ("hello", "x" * 5_000_000):
        answer = httpx.post(f"{proxy.url}/message:send", json=message_json(text), headers=V1 | KEY, timeout=LIMIT)
        assert answer.status_code == 200, answer.text
        assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_message_over_grpc_comes_through(proxy: Proxy) -> None:

    answer = await ask(cast(Gateway, proxy), "GRPC", "SendMessage", message_json("hello"), "", "echo", KEY)

    assert answer.is_success, answer.body
    assert "TASK_STATE_COMPLETED" in answer.body


async def test_each_event_of_a_stream_comes_through_at_once(proxy: Proxy, tmp_path: Path) -> None:
    """The agent waits until the client has received the first half of its events."""
    body, file = message_json(f"6 {tmp_path / 'received'}"), tmp_path / "received"
    url = f"{proxy.url}/agents/halves/message:stream"
    async with (
        httpx.AsyncClient(timeout=LIMIT) as http,
        http.stream("POST", url, json=body, headers=V1 | KEY) as response,
    ):
        texts: list[str] = []
        async for text in texts_of(response):
            texts.append(text)
            if len(texts) == 3:
                file.touch()

    assert [text.strip() for text in texts] == list("012345")


async def texts_of(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the text of each chunk of a stream."""
    async for frame in frames(response):
        for part in frame.data.get("artifactUpdate", {}).get("artifact", {}).get("parts", []):
            if part.get("text"):
                yield part["text"]


def test_a_body_that_is_too_large_is_an_a2a_error_or_refused_by_the_proxy(proxy: Proxy) -> None:
    """The limit of the proxy is larger than the limit of the gateway."""

    def post(size: int) -> httpx.Response:
        content = json.dumps(message_json("")).encode().ljust(size)
        headers = V1 | KEY | {"Content-Type": "application/json"}
        return httpx.post(f"{proxy.url}/message:send", content=content, headers=headers, timeout=LIMIT)

    answers = [post(11_000_000), post(12_000_000)]

    assert [answer.status_code for answer in answers] == [413, 413]
    assert "REQUEST_TOO_LARGE" in answers[0].text
    assert "REQUEST_TOO_LARGE" not in answers[1].text


@only_envoy
def test_a_client_that_sends_no_whole_headers_is_disconnected(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\n")

        assert connection.recv(12) == b"HTTP/1.1 408"


@only_envoy
def test_clients_do_not_control_envoy(proxy: Proxy) -> None:
    """Envoy has headers with which trusted clients limit the time of a request."""
    headers = V1 | KEY | {"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-retry-on": "5xx"}

    answer = httpx.post(f"{proxy.url}/message:send", json=message_json("hello"), headers=headers, timeout=LIMIT)

    assert answer.status_code == 200, answer.text
    assert [name for name in answer.headers if name.startswith("x-envoy")] == []
