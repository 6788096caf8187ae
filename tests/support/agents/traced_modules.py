"""App whose processes record which modules of a2a_celery they enter, for the diagram of a message's path."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from celery import Celery

import a2a_celery
from a2a_celery import A2A, Turn

FOLDER = "TEST_TRACES"
"""Environment variable that names the folder of the records."""

BEGIN, END = signal.SIGRTMIN, signal.SIGRTMIN + 1
"""Signals that start a record, and write the record to ``<process id>.end``."""

PACKAGE = str(Path(a2a_celery.__file__).parent) + os.sep

REPORTERS = frozenset({"a2a-prefetched", "a2a-announcer"})
"""Names of threads that send periodic reports and do not process messages."""

_entered_modules: set[str] = set()


def _record(frame: FrameType, event: str, _: object) -> None:
    if event == "call" and threading.current_thread().name not in REPORTERS:
        _entered_modules.add(frame.f_code.co_filename)


def _begin(*_: object) -> None:
    _entered_modules.clear()
    _write("begin", "")


def _end(*_: object) -> None:
    modules = (name.removeprefix(PACKAGE) for name in _entered_modules.copy() if name.startswith(PACKAGE))
    _write("end", "\n".join(sorted(modules)))


def _write(suffix: str, text: str) -> None:
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.{suffix}"
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


app = Celery("traced")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)


@a2a.agent("echo")
async def echo(turn: Turn) -> str:
    return turn.text


@a2a.agent("waits")
async def waits(turn: Turn) -> None:
    await asyncio.Event().wait()


if FOLDER in os.environ:
    signal.signal(BEGIN, _begin)
    signal.signal(END, _end)
    threading.setprofile(_record)
    sys.setprofile(_record)
