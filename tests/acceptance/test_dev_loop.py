"""Development with ``a2a dev``, which restarts processes when code changes, opens a debugger, and shows exceptions."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.support.processes.dev import Dev, busy
from tests.support.processes.terminal import CTRL_C, terminal
from tests.support.waiting import LIMIT, eventually

EDITED = """\
from celery import Celery
from a2a_celery import A2A, Turn

app = Celery("edited")
a2a = A2A(app)

@a2a.agent("greeter", description="Greets.", max_attempts=3)
async def greeter(turn: Turn) -> str:
    secret = "s3cret"
    if turn.text == "fail":
        raise ValueError(secret)
    if turn.text == "debug":
        breakpoint()
    return f"hello {turn.text}"
"""
"""Module of an app that the tests edit."""

SLOW = EDITED.replace("return f", "import asyncio; await asyncio.sleep(3600); return f")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Dev]]:
    """Function that writes the code of an app and starts ``a2a dev`` with the app."""
    with ExitStack() as stack:

        def start(code: str, *options: str) -> Dev:
            (tmp_path / "edited.py").write_text(code)
            command = [sys.executable, "-m", "celery", "-A", "edited", "a2a", "dev", "--port", "0", *options]
            dev = Dev([*command, "--concurrency", "2"], tmp_path, tmp_path / "log")
            stack.callback(dev.end)
            return dev.wait_until_ready()

        yield start


def send(dev: Dev, text: str) -> httpx.Response:
    """Send a blocking message to the agent of `EDITED`."""
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}
    url = f"{dev.url}/agents/greeter/message:send"
    return httpx.post(url, headers={"A2A-Version": "1.0"}, json={"message": message}, timeout=LIMIT)


def greet(dev: Dev, text: str) -> str:
    """Send a message to the agent of `EDITED` and return its answer."""
    return str(send(dev, text).json()["task"]["artifacts"][0]["parts"][0]["text"])


def test_reload_restarts_the_fleet_when_the_code_changes(start: Callable[..., Dev], tmp_path: Path) -> None:
    code, dev = tmp_path / "edited.py", start(SLOW, "--reload")
    task = busy(dev, "greeter", "early")

    def save(text: str, outcome: str) -> None:
        count_before = dev.output().count(outcome)
        code.write_text(text)
        eventually(lambda: dev.output().count(outcome) > count_before, what=outcome)

    save("app = (\n", "edited.py changed; nothing is restarted, because of the syntax error")
    assert "dev     | SyntaxError: '(' was never closed" in dev.output()
    assert "restarting" not in dev.output()

    save(EDITED, "the fleet is ready")
    assert "dev     | edited.py changed; restarting worker, watcher, gateway" in dev.output()
    assert greet(dev, "late") == "hello late"
    url = f"{dev.url}/agents/greeter/tasks/{task}"

    def read_task() -> dict[str, Any]:
        content: dict[str, Any] = httpx.get(url, headers={"A2A-Version": "1.0"}, timeout=LIMIT).json()
        return content if content["status"]["state"] == "TASK_STATE_COMPLETED" else {}

    assert eventually(read_task)["artifacts"][0]["parts"] == [{"text": "hello early"}]

    save(f"import no_such_module\n{EDITED}", "waiting for a change of the code")
    assert "No module named 'no_such_module'" in dev.output()

    save(EDITED.replace("hello", "goodbye"), "the fleet is ready")
    assert greet(dev, "now") == "goodbye now"

    since = monotonic()
    dev.processes()
    dev.popen.send_signal(signal.SIGINT)
    dev.require_stopped(since)


def test_an_exception_is_shown_with_its_traceback_but_not_to_the_client(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    dev = start(EDITED)

    answer = send(dev, "fail")

    assert answer.json()["task"]["status"]["message"]["parts"] == [{"text": "The agent failed."}]
    assert not re.search("s3cret|Traceback|ValueError|edited", answer.text)
    eventually(lambda: "worker  | ValueError: s3cret" in dev.output(), what=dev.output())
    assert f'worker  |   File "{tmp_path}/edited.py", line 11, in greeter' in dev.output()
    assert "worker  |     raise ValueError(secret)" in dev.output()


def test_a_breakpoint_has_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "edited.py").write_text(EDITED)
    celery = "import os, sys; os.chdir(sys.argv.pop(1)); from celery.bin.celery import main; sys.exit(main())"
    options = ["--workdir", str(tmp_path), "-A", "edited", "a2a", "dev", "--pool", "solo", "--port", "0"]
    with terminal(celery, str(tmp_path), *options) as screen:
        screen.shows("# Ctrl-C stops everything")
        content = re.search(r"^# Ready: 1 agent at (\S+)", screen.screen, re.MULTILINE)
        assert content is not None
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "debug"}]}
        with ThreadPoolExecutor() as threads:
            url = f"{content[1]}/agents/greeter/message:send"
            headers = {"A2A-Version": "1.0"}
            answer = threads.submit(httpx.post, url, headers=headers, json={"message": message}, timeout=LIMIT)
            screen.shows("(Pdb) ")
            screen.types("secret.upper()\n")
            screen.shows("'S3CRET'")
            screen.types("continue\n")

        assert answer.result().json()["task"]["artifacts"][0]["parts"] == [{"text": "hello debug"}]
        screen.types(CTRL_C)
        assert screen.ends() == 0
    assert "all stopped" in screen.screen
