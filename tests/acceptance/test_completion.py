"""Shell completion, set up as in docs/running.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.clients.talk import send
from tests.support.processes.fleet import Fleet, running_fleet

BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")

BASH_PROGRAM = """
{functions}
COMP_WORDS=({words} "")
COMP_CWORD={number}
$(complete -p {program} | sed -E 's/.* -F ([^ ]+) .*/\\1/') {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
"""Program that completes a line as bash does when the tab key is pressed."""


def bash(program: str, **env: str) -> str:
    """Run a bash program with the commands of this environment on the PATH, and return the output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("A2A_", "CELERY_"))}
    env = {**clean, "PATH": f"{BIN}{os.pathsep}{clean['PATH']}", **env}
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=ROOT, env=env, check=True)
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def functions() -> str:
    """Shell functions that the documented lines define."""
    setup = re.findall(r'^eval "\$\((_\w+=bash_source .*?)\)"', PAGE, re.MULTILINE)
    assert len(setup) == 2
    return "\n".join(map(bash, setup))


def completion_words(functions: str, line: str, **env: str) -> list[str]:
    """Return bash's completions of `line`. The last word is incomplete, unless the line ends with a space."""
    words = line.split()
    number = len(words) - (not line.endswith(" "))
    program = BASH_PROGRAM.format(functions=functions, words=line, number=number, program=words[0])
    return bash(program, **env).split()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def test_commands_options_and_agents_are_completed(functions: str) -> None:
    assert completion_words(functions, "a2a-celery in") == ["init"]
    assert completion_words(functions, "celery -A tests.support.agents.basic a2a list --stu") == ["--stuck"]
    assert completion_words(functions, "celery -A tests.support.agents.basic a2a send sync-e") == ["sync-echo"]


def test_an_app_that_cannot_be_loaded_completes_nothing(functions: str) -> None:
    assert completion_words(functions, "celery -A tests.support.nothing a2a send ec") == []


def test_open_tasks_are_completed(fleet: Fleet, functions: str) -> None:
    task_id = send(fleet.gateway(), "echo", "no worker runs", returnImmediately=True)["id"]
    settings = {"A2A_STORE_URL": fleet.redis.store_url, "CELERY_BROKER_URL": fleet.broker_url}

    assert completion_words(functions, "celery -A tests.support.agents.basic a2a cancel ", **settings) == [task_id]
    assert completion_words(functions, "celery -A tests.support.agents.basic a2a requeue ", **settings) == []
