"""``a2a-celery call``, interactively and in scripts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_celery.cli.main import main
from tests.support.clients.bindings import ServedFleet, rest
from tests.support.processes.fleet import running_fleet
from tests.support.processes.serving import serve_app as listening
from tests.support.processes.terminal import CTRL_C, Terminal, terminal
from tests.support.waiting import eventually

COMMAND = ("from a2a_celery.cli.main import main; main()", "call")


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    env = {"A2A_CANCEL_GRACE": "20"}  # long enough for a second Ctrl-C on a loaded machine
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.all_agents", **env) as fleet:
        yield ServedFleet(fleet, fleet.gateway(), fleet.worker(pool="threads", concurrency=8))


def call(served_fleet: ServedFleet, agent: str, *arguments: str, code: int = 0, input_text: str = "") -> Result:
    """Run the command without a terminal, with `input_text` as its stdin, and require the exit code."""
    result = CliRunner().invoke(main, ["call", f"{served_fleet.url}/agents/{agent}", *arguments], input=input_text)
    assert result.exit_code == code, result.output
    return result


def task_on(screen: Terminal) -> str:
    """Return the id of the task on the screen."""
    return screen.screen.partition("task ")[2].split()[0]


class TestOnATerminal:
    def test_a_conversation_of_two_turns(self, served_fleet: ServedFleet) -> None:
        with terminal(*COMMAND, f"{served_fleet.url}/agents/ask", "some") as screen:
            screen.shows("INPUT_REQUIRED: How many?\r\n> ")
            screen.types("many\n")
            screen.shows("INPUT_REQUIRED: How many?\r\n> ", times=2)
            screen.types("7\n")

            assert screen.ends() == 0
            assert screen.screen.endswith("artifact response: 7 it is\r\nCOMPLETED\r\n")
            assert screen.screen.count("task ") == 1, "each answer went to the same task"

    def test_what_authorization_needs_is_not_shown(self, served_fleet: ServedFleet) -> None:
        with terminal(*COMMAND, f"{served_fleet.url}/agents/states", "AUTH_REQUIRED") as screen:
            screen.shows("AUTH_REQUIRED: AUTH_REQUIRED it is\r\n> ")
            screen.types("hunter2\n")

            assert screen.ends() == 0
            assert screen.screen.count("hunter2") == 1, "this agent says it, nobody else"

    def test_ctrl_c_cancels_the_task(self, served_fleet: ServedFleet) -> None:
        with terminal(*COMMAND, f"{served_fleet.url}/agents/patient", "wait") as screen:
            screen.shows("WORKING")
            task_id = task_on(screen)
            screen.types(CTRL_C)

            assert screen.ends() == 4
            assert f"cancelling task {task_id}; Ctrl-C again leaves it running" in screen.screen
            assert screen.screen.endswith("the task is CANCELED\r\n")
            assert state_of(served_fleet, "patient", task_id) == "TASK_STATE_CANCELED"

    def test_ctrl_c_at_the_question_does_so_too(self, served_fleet: ServedFleet) -> None:
        with terminal(*COMMAND, f"{served_fleet.url}/agents/ask", "some") as screen:
            screen.shows("> ")
            screen.waits_for_input()
            screen.types(CTRL_C)

            assert screen.ends() == 4
            assert state_of(served_fleet, "ask", task_on(screen)) == "TASK_STATE_CANCELED"

    def test_a_second_ctrl_c_leaves_it(self, served_fleet: ServedFleet) -> None:
        with terminal(*COMMAND, f"{served_fleet.url}/agents/block", "60") as screen:  # this call reads no stdin
            screen.shows("WORKING")
            screen.types(CTRL_C)
            screen.shows("cancelling task")
            screen.types(CTRL_C)

            assert screen.ends() == 130
            assert f"left task {task_on(screen)}" in screen.screen


def state_of(served_fleet: ServedFleet, agent: str, task_id: str) -> str:
    state: str = rest(served_fleet.gateway, "GET", f"/tasks/{task_id}", agent=agent).json()["status"]["state"]
    return state


class TestInAScript:
    @pytest.mark.parametrize(
        ("agent", "text", "code", "last"),
        [
            ("echo", "hello", 0, "COMPLETED"),
            ("direct", "0", 0, "message: directly"),
            ("fail", "x", 1, "FAILED: The agent failed."),
            ("refuse", "x", 3, "REJECTED: Not today."),
        ],
    )
    def test_the_exit_code_is_that_of_the_final_state(
        self, served_fleet: ServedFleet, agent: str, text: str, code: int, last: str
    ) -> None:
        assert call(served_fleet, agent, text, code=code).stdout.splitlines()[-1].startswith(last)

    def test_without_input_it_ends_at_the_question(self, served_fleet: ServedFleet) -> None:
        result = call(served_fleet, "ask", "some", "--no-input", code=5, input_text="7\n")

        assert result.stdout.splitlines()[-1] == "INPUT_REQUIRED: How many?"

    def test_answers_may_be_piped_until_there_are_none(self, served_fleet: ServedFleet) -> None:
        assert call(served_fleet, "ask", "some", input_text="7\n").stdout.splitlines()[-1] == "COMPLETED"
        assert call(served_fleet, "ask", "some", input_text="many\n", code=5).stdout.count("INPUT_REQUIRED") == 2

    def test_lines_of_json(self, served_fleet: ServedFleet) -> None:
        lines = call(served_fleet, "ask", "some", "--json", input_text="7\n").stdout.splitlines()

        events = [json.loads(line) for line in lines]
        assert [next(iter(event)) for event in events].count("task") == 2
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"

    def test_data_and_headers(self, served_fleet: ServedFleet) -> None:
        output = call(served_fleet, "data", "--data", '{"a": 1}', "-H", "X-Test: yes").stdout

        assert '"number": 1' in output or '"number": 1.0' in output

    def test_chunks_of_a_stream_are_one_text(self, served_fleet: ServedFleet) -> None:
        assert "artifact response: 0 1 2\n" in call(served_fleet, "count", "3").stdout

    def test_files_are_saved(self, served_fleet: ServedFleet, tmp_path: Path) -> None:
        result = call(served_fleet, "files", "hello", "--json", "--save", str(tmp_path / "out"))

        contents = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert contents == {"report.txt": b"hello", "made.png": b"\0"}
        assert [line.split()[0] for line in result.stderr.splitlines()] == ["saved", "saved"]
        assert all(json.loads(line) for line in result.stdout.splitlines())

    def test_a_failure_shows_the_reference_that_the_worker_logs(self, served_fleet: ServedFleet) -> None:
        match = re.search(r"\[reference (\w+)\]$", call(served_fleet, "fail", "x", code=1).stdout, re.MULTILINE)

        assert match is not None
        assert served_fleet.worker is not None
        eventually(lambda: match[1] in served_fleet.worker.output(), what=f"the worker logs {match[1]}")

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["http://127.0.0.1:1", "x"], "is unreachable"),
            (["127.0.0.1", "x"], "must begin with http:// or https://"),
            (["http://127.0.0.1:1"], "nothing to send"),
            (["http://127.0.0.1:1", "--data", "{"], "not JSON"),
            (["http://127.0.0.1:1", "--data", "[NaN, 1e400]"], "not JSON"),
            (["http://127.0.0.1:1", "--data", "[" * 200 + "]" * 200], "not JSON"),
            (["http://127.0.0.1:1", "--data", "[" * 100_000], "not JSON"),
            (["http://127.0.0.1:1", "\udcff"], "not UTF-8"),
            (["http://127.0.0.1:1", "x", "-H", "bad"], "write 'Name: value'"),
        ],
    )
    def test_what_is_wrong_is_one_clear_line(self, arguments: list[str], error: str) -> None:
        result = CliRunner().invoke(main, ["call", *arguments])

        assert result.exit_code in (1, 2)
        assert error in result.output
        assert "Traceback" not in result.output

    @pytest.mark.parametrize("answer", [{}, {"task": {"id": "t"}}], ids=repr)
    async def test_an_answer_that_is_none_is_no_success(self, answer: dict[str, Any]) -> None:
        frame = {"jsonrpc": "2.0", "id": 1, "result": answer}

        async def agent(request: Request) -> Response:
            if "well-known" not in request.url.path:
                if b"GetTask" in await request.body():
                    return JSONResponse({**frame, "result": answer["task"]})
                return Response(f"data: {json.dumps(frame)}\n\n", media_type="text/event-stream")
            at = {"url": str(request.base_url), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            streams = {"streaming": True}
            return JSONResponse({"name": "a", "version": "1", "capabilities": streams, "supportedInterfaces": [at]})

        async with listening(Starlette(routes=[Route("/{path:path}", agent, methods=["GET", "POST"])])) as url:
            result = await asyncio.to_thread(CliRunner().invoke, main, ["call", url, "x"])

        assert result.exit_code == 1
        assert "neither a message nor a task with a state" in result.output

    def test_an_address_without_an_agent(self, served_fleet: ServedFleet) -> None:
        output = call(served_fleet, "nobody", "x", code=1).output
        assert "responded 404: Nothing is served at GET /agents/nobody" in output
