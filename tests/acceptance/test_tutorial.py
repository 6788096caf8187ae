"""The programs and commands of docs/tutorial.md, with real processes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.processes.fleet import Fleet, Process, free_port
from tests.support.waiting import LIMIT, eventually

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
EXPORTS = dict(line.removeprefix("export ").split("=", 1) for line in COMMANDS if line.startswith("export "))
BIN = Path(sys.executable).parent
STEP = "find sights in Lisbon"


class Reader:
    """Reader of the tutorial who works in `folder` and types its commands.

    Ports in the tutorial are replaced by free ports, and its Redis server by the Redis server of `fleet`.
    """

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder
        self.port = free_port()
        self.env = {"PATH": f"{BIN}:/usr/bin:/bin", "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}

    def save(self, program: int) -> None:
        """Write a program of the tutorial to trip.py."""
        (self.folder / "trip.py").write_text(PROGRAMS[program])

    def start(self, name: str, command: str, *more: str) -> Process:
        """Start a command of the tutorial in the background."""
        assert command in COMMANDS
        program, *arguments = shlex.split(command.replace("8000", str(self.port)))
        arguments = [str(self.folder / word) if word == "worker.pid" else word for word in arguments]
        process = Process(name, [str(BIN / program), *arguments, *more], self.env, self.folder / f"{name}.log")
        self.fleet.processes.append(process)
        return process

    def call(self, answer: str) -> subprocess.Popen[str]:
        """Send the message of the tutorial, and answer the agent's question."""
        program, *arguments = shlex.split(next(line for line in COMMANDS if line.startswith("a2a-celery call")))
        command = [str(BIN / program), *(word.replace("8000", str(self.port)) for word in arguments)]
        with (self.folder / "call.log").open("w") as output:
            caller = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True)
        assert caller.stdin is not None
        caller.stdin.write(f"{answer}\n")
        caller.stdin.close()
        return caller

    def client_output(self) -> str:
        """Return the output of the client."""
        return (self.folder / "call.log").read_text()


@pytest.fixture
def reader(fleet: Fleet, tmp_path: Path) -> Reader:
    return Reader(fleet, tmp_path)


def test_the_agent_asks(reader: Reader) -> None:
    reader.save(0)
    dev = reader.start("dev", "celery -A trip a2a dev", "--port", str(reader.port))
    dev.wait_for_output("# Ready")

    assert reader.call("3").wait(LIMIT) == 0, reader.client_output()

    assert "How many days do you have in Lisbon?" in reader.client_output()
    assert "Lisbon in 3 days." in reader.client_output()


def test_the_agent_survives_its_worker(reader: Reader) -> None:
    redis = {"CELERY_BROKER_URL": reader.fleet.redis.broker_url, "A2A_STORE_URL": reader.fleet.redis.store_url}
    assert EXPORTS.keys() - redis.keys() == {"A2A_LEASE_TTL"}
    reader.env |= EXPORTS | redis
    assert (BIN / "redis-server").exists(), "the page starts the server of the extra"
    reader.save(1)
    worker_command = next(line for line in COMMANDS if line.startswith("celery -A trip worker"))
    worker = reader.start("worker", worker_command)
    reader.start("gateway", "celery -A trip a2a gateway --port 8000").wait_for_output("Uvicorn running")
    reader.start("watcher", "celery -A trip a2a watcher").wait_for_output("watcher started")
    worker.wait_for_output(" ready.")

    caller = reader.call("4")
    eventually(lambda: "Day 2" in reader.client_output(), what="the second day arrives")
    assert "kill -9 $(cat worker.pid)" in COMMANDS
    worker.kill()
    second = reader.start("second-worker", worker_command)

    assert caller.wait(LIMIT) == 0, reader.client_output() + reader.fleet.logs()
    days = re.findall(r"Day (\d): the (\w+)\.", reader.client_output())
    places = [("1", "harbour"), ("2", "market"), ("3", "museum"), ("4", "harbour")]
    assert days[-4:] == places
    assert days[:2] == places[:2]
    assert STEP in worker.output()
    assert STEP not in second.output()
