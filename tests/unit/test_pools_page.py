"""Consistency of docs/pools.md with the code: Celery's pool option, threads, signals and hooks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from celery import Celery, signals
from celery.concurrency import get_implementation

from a2a_celery.pool import THREADS, AsyncioPool
from tests.support.processes.fleet import ASYNCIO_POOL

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pools.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.+?)```", PAGE, re.DOTALL)


def test_the_command_of_the_page_selects_the_pool() -> None:
    (command,) = snippets("sh")
    assignment, *words = shlex.split(command)
    name, _, path = assignment.partition("=")
    assert path == ASYNCIO_POOL
    program = "import sys; from celery.bin.worker import WorkersPool; print(WorkersPool().choices)"
    choices = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, name: path}, capture_output=True, text=True, check=True
    ).stdout
    assert words[words.index("--pool") + 1] in choices


def test_an_app_may_select_the_pool() -> None:
    app = Celery("acme", set_as_current=False)

    (snippet,) = snippets("python")
    exec(snippet, {"app": app})

    assert get_implementation(app.conf.worker_pool) is AsyncioPool


def test_its_numbers_and_names_are_those_of_the_code() -> None:
    assert f"at most {THREADS} at a time" in PAGE
    for name in re.findall(r"`(task_\w+)`", PAGE):
        assert hasattr(signals, name)
