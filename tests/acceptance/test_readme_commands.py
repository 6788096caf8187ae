"""The agent, commands and requests of README.md and docs/running.md, and the tools of CONTRIBUTING.md."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.processes.fleet import Fleet, Process, free_port
from tests.support.receivers.receiver import receiver
from tests.support.waiting import LIMIT, eventually

README = (ROOT / "README.md").read_text()
FLEET = README + (ROOT / "docs" / "running.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()

OPERATORS = {
    "celery -A acme a2a list --stuck": "nothing is stuck",
    "celery -A acme a2a requeue": "no dead letters",
    "celery -A acme a2a requeue --all": "no dead letters",
    "celery -A acme a2a deliveries": "no webhook waits for an event, no delivery was given up",
}
"""Commands that print a report and exit, with their output for a healthy fleet."""

DEVELOPMENT = "celery -A acme a2a dev --reload"
"""Command that starts all processes. test_dev_loop.py tests it."""


def blocks(language: str, page: str = FLEET) -> list[str]:
    """Return the fenced blocks of `page` in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def lines_with(start: str, page: str = FLEET) -> list[str]:
    """Return the commands of `page` that begin with `start`, without their comments."""
    lines = [line for block in blocks("sh", page) for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith(start)]


def test_the_readmes_agent_is_served_by_the_readmes_commands(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(blocks("python")[0])
    port = free_port()
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(tmp_path),
        "CELERY_BROKER_URL": fleet.redis.broker_url,
        "A2A_STORE_URL": fleet.redis.store_url,
        "A2A_SECRET_KEY": "a-key-for-the-tests-of-32-characters-and-more",
        "A2A_ALLOW_NETWORKS": "127.0.0.0/8",
    }
    lines = lines_with("celery -A acme")
    commands = [shlex.split(line.replace("8000", str(port))) for line in lines if line not in {*OPERATORS, DEVELOPMENT}]
    names = [" ".join(c[3:5]) for c in commands]
    assert names == ["worker --prefetch-multiplier", "a2a gateway", "a2a watcher"]
    assert set(OPERATORS) < set(lines)
    celery = str(Path(sys.executable).parent / "celery")
    fleet.processes += [
        Process(name, [celery, *c[1:]], env, tmp_path / f"{name}.log") for name, c in zip(names, commands, strict=True)
    ]
    curl, webhook_command = (b.replace("8000", str(port)) for b in blocks("sh") if b.startswith("curl"))

    def answer() -> dict[str, object] | None:
        assert all(process.is_running for process in fleet.processes), fleet.logs()
        result = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=LIMIT, check=False)
        return json.loads(result.stdout) if result.stdout else None

    task = eventually(answer, what="the README's request is answered")["task"]  # type: ignore[index]
    with receiver() as hooks:
        posted_to = webhook_command.replace("https://you.example.com/a2a-events", hooks.url())
        subprocess.run(posted_to, shell=True, check=True, capture_output=True, timeout=LIMIT)
        eventually(lambda: b"Hello, Ada!" in b"".join(got.body for got in hooks.requests()), what="it is posted")
        eventually(lambda: b"COMPLETED" in hooks.requests()[-1].body, what="the end is posted")
        (tmp_path / "ask.py").write_text(blocks("python")[1].replace("8000", str(port)))
        [call] = [shlex.split(line.replace("8000", str(port))) for line in lines_with("a2a-celery call")]
        for caller in (
            [sys.executable, str(tmp_path / "ask.py")],
            [str(Path(sys.executable).parent / call[0]), *call[1:]],
        ):
            result = subprocess.run(caller, capture_output=True, text=True, timeout=LIMIT, check=True)
            assert "Hello, Ada!" in result.stdout
            assert "COMPLETED" in result.stdout
        for command, text in OPERATORS.items():
            arguments = [celery, *shlex.split(command)[1:]]
            result = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
            assert (result.returncode, result.stderr) == (0, ""), command
            assert result.stdout.startswith(text), command
    assert task["artifacts"][0]["parts"] == [{"text": "Hello, Ada!"}]  # type: ignore[index]


@pytest.mark.parametrize("command", [c for c in lines_with(".venv/bin/", CONTRIBUTING) if "pip" not in c])
def test_the_commands_for_working_on_it_are_what_ci_runs(command: str) -> None:
    ci = (ROOT / ".ci" / "run").read_text()

    for item in command.split(" && "):
        part_of_all = re.fullmatch(r"\.venv/bin/pytest (tests/\w+)", item)
        assert item in ci or (part_of_all and (ROOT / part_of_all[1]).is_dir()), item


def test_the_command_that_tries_it_is_what_ci_runs() -> None:
    [command] = [line for line in lines_with("python3 -m venv", README) if "demo" in line]

    assert command.removesuffix(" && .venv/bin/a2a-celery demo") in (ROOT / ".ci" / "run").read_text()
