"""``a2a send | get | tail | cancel | list`` against a real gateway and worker, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery.cli.client.task_commands import PAGE
from a2a_celery.cli.commands import a2a
from a2a_celery.lifecycle.references import Scope
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.agents.basic import app
from tests.support.processes.fleet import Fleet, Gateway, free_port, running_fleet
from tests.support.store.seeds import Seeds
from tests.support.waiting import LIMIT, eventually


@dataclass
class Commands:
    """Runner of commands against a fleet's gateway."""

    fleet: Fleet
    url: str

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        """Run ``a2a <arguments>`` in this process, because that is fast, and require the exit code."""
        result = CliRunner().invoke(a2a, [*arguments, "--url", self.url], obj=SimpleNamespace(app=app))
        assert result.exit_code == code, result.output
        return result

    def lines(self, *arguments: str) -> list[Any]:
        """Run the command with --json, and return the parsed lines of its output."""
        return [json.loads(line) for line in self(*arguments, "--json").stdout.splitlines()]

    def accept_message(self, agent: str, text: str) -> str:
        """Send a message, and return the task's id without waiting for the task to finish."""
        (event,) = self.lines("send", agent, text, "--return-immediately")
        return str(event["task"]["id"])

    def eventually(self, task: str, state: str) -> None:
        def is_in_state() -> bool:
            return bool(self.lines("get", task)[0]["status"]["state"] == f"TASK_STATE_{state}")

        eventually(is_in_state, what=state)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.worker(pool="threads", concurrency=8)
        yield Commands(fleet, fleet.gateway().url)


ID = r"[0-9a-f-]{36}"


class TestSend:
    def test_shows_a_line_for_each_event(self, commands: Commands) -> None:
        lines = commands("send", "echo", "hello").stdout.splitlines()

        assert re.fullmatch(rf"task {ID} \(context {ID}\)", lines[0])
        assert lines[1:] == ["SUBMITTED", "WORKING", "artifact response: hello", "COMPLETED"]

    def test_the_json_output_has_the_same_data(self, commands: Commands) -> None:
        events = commands.lines("send", "full", "hello")

        assert [next(iter(event)) for event in events][:2] == ["task", "statusUpdate"]
        assert "artifactUpdate" in events[3]
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"

    def test_without_a_stream_shows_the_task_at_its_end(self, commands: Commands) -> None:
        lines = commands("send", "echo", "hello", "--no-stream").stdout.splitlines()

        assert lines[1:] == ["COMPLETED", "artifact response: hello"]

    def test_an_agent_without_streaming_is_asked_without(self, commands: Commands) -> None:
        assert "COMPLETED" in commands("send", "quiet", "hello").stdout

    def test_returns_immediately_when_asked(self, commands: Commands) -> None:
        lines = commands("send", "silent", "0.2", "--return-immediately").stdout.splitlines()

        assert lines[1:] == ["SUBMITTED"]

    def test_continues_a_task(self, commands: Commands) -> None:
        first = commands("send", "ask", "hi").stdout.splitlines()
        assert first[-1] == "INPUT_REQUIRED: How many?"
        task = first[0].split()[1]

        second = commands("send", "ask", "3", "--task", task).stdout.splitlines()

        assert second[0] == first[0]
        assert second[-2:] == ["artifact response: 3 it is", "COMPLETED"]

    def test_puts_a_task_into_a_context(self, commands: Commands) -> None:
        assert "(context mine)" in commands("send", "echo", "hello", "--context", "mine").stdout

    def test_sends_data_and_headers_and_shows_data(self, commands: Commands) -> None:
        (event,) = commands.lines("send", "data", "--data", '{"a": [1]}', "--no-stream", "-H", "X-Test: yes")
        assert event["task"]["history"][0]["parts"] == [{"data": {"a": [1]}}]

        output = commands("send", "data", "hello", "--no-stream").stdout.splitlines()[-1]
        assert json.loads(output.removeprefix("artifact response: "))["number"] == 1

    def test_a_direct_answer_is_a_message(self, commands: Commands) -> None:
        assert commands("send", "direct", "0").stdout == "message: directly\n"

    def test_control_characters_of_an_agent_do_not_reach_the_terminal(self, commands: Commands) -> None:
        output = commands("send", "echo", "one\x1b[2J\r\ntwo").stdout

        assert "\x1b" not in output
        assert "artifact response: one\N{REPLACEMENT CHARACTER}[2J\n  two\n" in output

    def test_files_are_saved_at_the_end(self, commands: Commands, tmp_path: Path) -> None:
        for number, options in enumerate(([], ["--no-stream"])):
            commands("send", "files", "hello", *options, "--save", str(tmp_path / str(number)))

        assert {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.txt")} == {
            "0/report.txt": b"hello",
            "1/report.txt": b"hello",
        }
        result = commands("send", "echo", "hello", "--return-immediately", "--save", str(tmp_path), code=2)
        assert "--save needs the end of the task" in result.stderr

    @pytest.mark.parametrize("agent", ["fail", "refuse"])
    def test_a_task_that_fails_is_an_answer_too(self, commands: Commands, agent: str) -> None:
        assert re.search("^(FAILED|REJECTED): ", commands("send", agent, "hello").stdout, re.MULTILINE)


class TestOneTask:
    def test_get_finds_it_whichever_agent_has_it(self, commands: Commands) -> None:
        task = commands.lines("send", "count", "3")[0]["task"]["id"]

        lines = commands("get", task).stdout.splitlines()
        assert re.fullmatch(r"agent count, updated \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", lines[1])
        assert lines[2:] == ["COMPLETED", "artifact response: 0 1 2"]
        assert commands.lines("get", task, "--agent", "count")[0]["id"] == task

    def test_get_of_one_that_is_not_there(self, commands: Commands) -> None:
        assert "Error: no task missing of echo, sync-echo," in commands("get", "missing", code=1).stderr
        task = commands.lines("send", "echo", "hi")[0]["task"]["id"]
        assert f"Error: no task {task} of full at " in commands("get", task, "--agent", "full", code=1).stderr

    def test_tail_follows_it_to_its_end(self, commands: Commands) -> None:
        task = commands.accept_message("pace", "8 1.5")

        events = commands.lines("tail", task)

        assert events[0]["task"]["id"] == task
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert sum("artifactUpdate" in event for event in events) >= 1

    def test_tail_of_an_ended_one_shows_it(self, commands: Commands) -> None:
        task = commands.lines("send", "echo", "hello")[0]["task"]["id"]

        assert commands("tail", task).stdout.splitlines()[1:] == ["COMPLETED", "artifact response: hello"]

    def test_tail_of_an_agent_without_streaming(self, commands: Commands) -> None:
        task = commands.lines("send", "quiet", "hello")[0]["task"]["id"]

        assert "Error: the agent quiet does not stream" in commands("tail", task, code=1).stderr

    def test_cancel_shows_it_when_its_agent_has_stopped(self, commands: Commands) -> None:
        task = commands.accept_message("patient", "")
        commands.eventually(task, "WORKING")

        assert commands("cancel", task).stdout.splitlines()[1] == "CANCELED: Cancelled by the client."

    def test_cancel_of_an_ended_one_is_an_error(self, commands: Commands) -> None:
        task = commands.lines("send", "echo", "hello")[0]["task"]["id"]

        output = commands("cancel", task, code=1).stderr

        assert output == "Error: The task has ended already: TASK_STATE_COMPLETED\n"


NUMBERS = " ".join(map(str, range(20)))
FIRST_HALF = " ".join(map(str, range(10)))


class TestRestart:
    """Streams of a gateway that stops and starts again at the same address."""

    def test_send_and_tail_resume(self, commands: Commands, tmp_path: Path) -> None:
        fleet, gateway, second_half = commands.fleet, commands.fleet.gateway(), tmp_path / "second_half"
        # the agent must not end before the gateway is back: `tail` shows an ended task from its beginning
        sending = fleet.start("send", "a2a", "send", "halves", f"20 {second_half}", "--url", gateway.url)
        sending.wait_for_output("artifact response: ")
        task = sending.output().split()[1]
        tailing = fleet.start("tail", "a2a", "tail", task, "--url", gateway.url)
        for process in (sending, tailing):
            process.wait_for_output(f"artifact response: {FIRST_HALF}")
        eventually(lambda: open_streams(gateway) == 2, what="both commands follow the task")

        gateway.stop()
        fleet.restart_gateway(gateway)
        eventually(lambda: open_streams(gateway) == 2, what="both commands follow the task again")
        second_half.touch()

        for process in (sending, tailing):
            assert process.popen.wait(LIMIT) == 0, process.output()
        lines = ["WORKING", f"artifact response: {NUMBERS}", "COMPLETED"]
        assert sending.output().splitlines()[1:] == ["SUBMITTED", *lines]
        assert tailing.output().splitlines()[1:] == lines

    def test_a_gateway_that_stays_unavailable_is_reported(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("a2a_celery.cli.client.task_commands.RECONNECT_TIMEOUT", 0.5)
        gateway = commands.fleet.gateway()
        task = Commands(commands.fleet, gateway.url).accept_message("pace", "3 2")
        with ThreadPoolExecutor() as threads:
            tailing = threads.submit(Commands(commands.fleet, gateway.url), "tail", task, code=1)
            eventually(lambda: open_streams(gateway) == 1, what="the stream is open")
            gateway.stop()
            result = tailing.result()

        assert result.stderr.startswith("Error: ")
        assert result.stderr.endswith(f"; the task continues: a2a tail {task}\n")


def open_streams(gateway: Gateway) -> float:
    """Return the number of open streams of a gateway."""
    metrics = httpx.get(f"{gateway.url}/metrics").text
    return sum(float(value) for value in re.findall(r"^a2a_gateway_open_streams{.*} (.+)$", metrics, re.MULTILINE))


@pytest.fixture(scope="module")
def context(commands: Commands) -> str:
    """Context with one task each of the agents "echo", "full" and "ask", created in this order. The task of "ask"
    waits for an answer."""
    name = f"list-{uuid4()}"
    for agent in ("echo", "full", "ask"):
        commands("send", agent, "hello", "--context", name)
    return name


class TestList:
    def test_is_a_table_newest_first(self, commands: Commands, context: str) -> None:
        heading, *rows = commands("list", "--context", context).stdout.splitlines()

        assert heading.split() == ["TASK", "STATE", "AGENT", "UPDATED", "(UTC)", "CONTEXT"]
        match = [re.fullmatch(rf"{ID}  (\S+) +(\S+) +\S+ \S+  {context}", row) for row in rows]
        states = ["INPUT_REQUIRED ask", "COMPLETED full", "COMPLETED echo"]
        assert [f"{row[1]} {row[2]}" for row in match if row] == states

    def test_is_a_line_for_each_task_for_scripts(self, commands: Commands, context: str) -> None:
        assert [task["contextId"] for task in commands.lines("list", "--context", context)] == [context] * 3

    @pytest.mark.parametrize(
        ("option", "count"), [(("--state", "completed"), 2), (("--agent", "full"), 1), (("--limit", "2"), 2)]
    )
    def test_is_narrowed_by_options(
        self, commands: Commands, context: str, option: tuple[str, str], count: int
    ) -> None:
        assert len(commands.lines("list", "--context", context, *option)) == count

    def test_the_output_mentions_further_pages(self, commands: Commands, context: str) -> None:
        assert commands("list", "--context", context, "--limit", "2").stdout.endswith(
            "… more tasks exist: raise --limit\n"
        )
        assert "more" not in commands("list", "--context", context, "--limit", "3").stdout

    def test_goes_over_pages(self, commands: Commands) -> None:
        name = f"pages-{uuid4()}"
        asyncio.run(create_tasks(commands.fleet.redis.store_url, name, PAGE + 1))
        options = ("--context", name, "--agent", "echo", "--limit", str(2 * PAGE))
        assert len({task["id"] for task in commands.lines("list", *options)}) == PAGE + 1


async def create_tasks(url: str, context_id: str, count: int) -> None:
    """Create tasks of the agent "echo", without runs in the broker."""
    store = AsyncStore(url)
    seeds = Seeds(store, Keys(Settings(store_url=url).key_prefix))
    for _ in range(count):
        await seeds.create_task(Scope("echo"), context_id=context_id)
    await store.aclose()


class TestWhatGoesWrong:
    def test_a_refused_connection_is_retried(self, commands: Commands) -> None:
        unreachable = Commands(commands.fleet, f"http://127.0.0.1:{free_port()}")
        for arguments in (["send", "echo", "hello"], ["list"], ["get", "t"]):
            output = unreachable(*arguments, code=1).stderr
            assert output.startswith(f"Error: no gateway at {unreachable.url}: start one with celery -A … a2a gateway")

    def test_another_server_is_reported(self, commands: Commands) -> None:
        output = Commands(commands.fleet, f"{commands.url}/elsewhere")("list", code=1).stderr
        assert "answers 404: is " in output
        assert len(output.splitlines()) == 1

    def test_a_url_that_is_none(self, commands: Commands) -> None:
        assert "Error: " in Commands(commands.fleet, "nonsense")("list", code=1).stderr

    @pytest.mark.parametrize(
        ("arguments", "code", "error"),
        [
            (("send", "missing", "hello"), 1, "no agent 'missing'; this app has echo,"),
            (("list", "--agent", "missing"), 1, "no agent 'missing'"),
            (("send", "echo"), 2, "nothing to send: pass TEXT or --data"),
            (("send", "echo", "--data", "{"), 2, "not JSON"),
            (("send", "echo", "hello", "-H", "nonsense"), 2, "write 'Name: value'"),
            (("list", "--state", "nonsense"), 2, "'nonsense' is not one of"),
            (("list", "--limit", "0"), 2, "--limit"),
            (("get",), 2, "Missing argument 'TASK'"),
            (("send", "echo", "hello", "--task", "missing"), 1, "Error: Task not found"),
        ],
    )
    def test_wrong_usage_is_an_error_with_a_hint(
        self, commands: Commands, arguments: tuple[str, ...], code: int, error: str
    ) -> None:
        assert error in commands(*arguments, code=code).stderr

    def test_an_app_without_agents(self) -> None:
        result = CliRunner().invoke(a2a, ["list"], obj=SimpleNamespace(app=Celery("bare", set_as_current=False)))

        assert result.exit_code == 1
        assert "'bare' has no agents" in result.stderr


def test_the_address_is_the_public_one_unless_given(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke: Callable[[], Result] = lambda: CliRunner().invoke(a2a, ["list"], obj=SimpleNamespace(app=app))  # noqa: E731
    monkeypatch.setenv("A2A_PUBLIC_URL", commands.url)
    assert invoke().exit_code == 0
    monkeypatch.setenv("A2A_PUBLIC_URL", "http://127.0.0.1:1")
    assert "no gateway at http://127.0.0.1:1:" in invoke().stderr


def test_the_gateway_is_the_one_that_was_named_whatever_its_public_address_is(commands: Commands) -> None:
    gateway = commands.fleet.gateway(A2A_PUBLIC_URL="http://127.0.0.1:1")

    assert "COMPLETED" in Commands(commands.fleet, gateway.url)("send", "echo", "hello").stdout


def test_celery_knows_the_commands_and_they_need_neither_store_nor_broker(commands: Commands) -> None:
    env = {"A2A_STORE_URL": "", "CELERY_BROKER_URL": "amqp://127.0.0.1:1"}

    result = commands.fleet.command("a2a", "send", "echo", "hello", "--url", commands.url, **env)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("artifact response: hello\nCOMPLETED\n")
