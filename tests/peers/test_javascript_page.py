"""Programs of docs/javascript.md, executed in Node.js."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_celery.push.request import Signer
from tests.conftest import require_peers
from tests.support import ROOT
from tests.support.processes.fleet import Gateway, Process, running_fleet
from tests.support.receivers.posts import SECRET
from tests.support.waiting import LIMIT, eventually

from .environments import NODE, program

PAGE = (ROOT / "docs" / "javascript.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```js\n// (\w+\.mjs)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
EVENT_SOURCE = re.search(r"^```js\n(const source = .*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with the documented programs."""
    require_peers(NODE)
    for name, code in PROGRAMS.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def output_lines(folder: Path, *arguments: str) -> list[str]:
    """Run a program in Node.js and return the lines that it prints."""
    result = subprocess.run(
        [program(NODE), *arguments], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Gateway with the agents of the demo."""
    with running_fleet(tmp_path_factory.mktemp("demo"), app="workers.app") as fleet:
        fleet.worker(pool="threads", concurrency=2)
        yield fleet.gateway()


def test_the_client_streams_and_answers(folder: Path, demo: Gateway) -> None:
    *stream_lines, first, second, last = output_lines(folder, "ask.mjs", demo.url)

    words = [line for line in stream_lines if not line.startswith("TASK_STATE_")]
    assert words == ["Once ", "upon ", "a ", "time ", "a "]
    assert (stream_lines[0], stream_lines[-1]) == ("TASK_STATE_SUBMITTED", "TASK_STATE_COMPLETED")
    assert [first, second] == ["For how many people?", "For which day?"]
    assert last == "TASK_STATE_COMPLETED A table for 4 is booked for 4."


@pytest.mark.parametrize(
    "end",
    [
        "out.error(new Error('lost'))",
        """(out.enqueue(new TextEncoder().encode('data: {"error": {"code": 503}}\\n\\n')), out.close())""",
    ],
    ids=["lost", "unavailable"],
)
def test_a_stream_is_resumed_after_the_last_event(folder: Path, gateways: tuple[Gateway, Gateway], end: str) -> None:
    """After the second event, the connection breaks, or the gateway loses its store and ends the stream with an
    error."""
    (folder / "cut.mjs").write_text(
        """
        import { stream, text } from './a2a.mjs';
        const original = fetch;
        globalThis.fetch = async (url, options) => {
          const response = await original(url, options);
          if (!url.endsWith('/message:stream')) return response;
          const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
          let events = 0, rest = '';
          return new Response(new ReadableStream({ async pull(out) {
            if (++events > 2) return console.log('cut'), END;
            while (!rest.includes('\\n\\n')) rest += (await reader.read()).value;
            const length = rest.indexOf('\\n\\n') + 2;
            out.enqueue(new TextEncoder().encode(rest.slice(0, length)));
            rest = rest.slice(length);
          } }, { highWaterMark: 0 }));
        };
        for await (const event of stream(process.argv[2], text('count 3'))) console.log(Object.keys(event)[0]);
        process.exit();
        """.replace("END", end)
    )
    events = output_lines(folder, "cut.mjs", gateways[0].url)

    events.remove("cut")  # printed when the cut was made, which may be before an earlier event is read
    assert events == ["task", "statusUpdate", *["artifactUpdate"] * 3, "statusUpdate"]


def test_an_error_has_its_reason(folder: Path, gateways: tuple[Gateway, Gateway]) -> None:
    (folder / "wrong.mjs").write_text(
        "import { send, text } from './a2a.mjs';\n"
        "const message = text('hello', { taskId: 'nobody' });\n"
        "await send(process.argv[2], message).catch((error) => console.log(error.code, error.reason));\n"
    )

    assert output_lines(folder, "wrong.mjs", gateways[0].url) == ["404 TASK_NOT_FOUND"]


def test_an_event_source_follows_a_task(folder: Path, gateways: tuple[Gateway, Gateway]) -> None:
    assert EVENT_SOURCE is not None
    (folder / "source.mjs").write_text(
        "import { send, text } from './a2a.mjs';\n"
        "const agent = process.argv[2];\n"
        "const { task } = await send(agent, text('ask'));\n"
        f"{EVENT_SOURCE[1]}"
        "source.onmessage = ({ data }) => { console.log(Object.keys(JSON.parse(data))[0]); source.close(); };\n"
    )

    assert output_lines(folder, "--experimental-eventsource", "source.mjs", gateways[0].url) == ["task"]


@pytest.fixture
def receiver(folder: Path) -> Iterator[Process]:
    """Process of the documented receiver."""
    environment = {"WEBHOOK_SECRET": SECRET, "PORT": "0"}
    process = Process("receiver", [program(NODE), str(folder / "receiver.mjs")], environment, folder / "log")
    try:
        process.wait_for_output("listening ")
        yield process
    finally:
        process.kill()


def port_of(receiver: Process) -> int:
    return int(receiver.output().split()[1])


def test_the_receiver_accepts_signed_posts_only(receiver: Process, gateways: tuple[Gateway, Gateway]) -> None:
    url = f"http://127.0.0.1:{port_of(receiver)}/events"
    assert httpx.post(url, json={}).status_code == 401
    message = {"messageId": "m-of-the-page", "role": "ROLE_USER", "parts": [{"text": "count 1"}]}
    config = {"url": url, "token": SECRET}
    body = {"message": message, "configuration": {"taskPushNotificationConfig": config}}
    response = httpx.post(f"{gateways[0].url}/message:send", json=body, headers={"A2A-Version": "1.0"}, timeout=LIMIT)
    assert response.status_code == 200, response.text

    eventually(lambda: "TASK_STATE_COMPLETED" in receiver.output(), what="the last event is posted")
    states = receiver.output().splitlines()[1:]
    assert states == ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "an artifact", "TASK_STATE_COMPLETED"]


def test_the_receiver_survives_failed_posts_and_names_pings(receiver: Process) -> None:
    port = port_of(receiver)
    with socket.create_connection(("127.0.0.1", port)) as connection:  # disconnects before the end of the body
        connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
    receiver.wait_for_output("aborted")

    def post(body: bytes) -> int:
        config = TaskPushNotificationConfig(url=f"http://127.0.0.1:{port}/", token=SECRET)
        headers = Signer.of(config).headers("msg_t_ping-1", int(time.time()), body)
        return httpx.post(config.url, content=body, headers=headers, timeout=LIMIT).status_code

    assert post(b"not JSON") == 500, "the event comes again"
    assert post(b'{"type": "webhook.ping"}') == 204
    assert receiver.output().splitlines()[-1] == "webhook.ping"
