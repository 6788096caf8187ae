"""RabbitMQ nodes with a configuration of the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.processes.fleet import free_port
from tests.support.waiting import eventually

RABBITMQ = (Path("/usr/lib/rabbitmq/bin/rabbitmq-server"), *map(Path, filter(None, [shutil.which("rabbitmq-server")])))
"""Possible paths of RabbitMQ's start script. Debian's script comes first, because the script on PATH changes to a user
that may not read the test's folder."""


def skip_without(what: str) -> NoReturn:
    """Skip the test because `what` is missing. In CI, fail instead."""
    if os.environ.get("CI"):
        pytest.fail(f"no {what} here, and CI needs it")
    pytest.skip(f"no {what} here")


@contextmanager
def rabbitmq_node(folder: Path, port: int, lines: Mapping[str, object], options: str = "") -> Iterator[None]:
    """Run a RabbitMQ node, named after `port`, whose files are in `folder`.

    Args:
        folder: Folder of the node's files.
        port: Port of the node's listener.
        lines: Lines of ``rabbitmq.conf``, by name. They configure the listener.
        options: Options of the Erlang runtime, for values that ``rabbitmq.conf`` cannot set.
    """
    program = next((path for path in RABBITMQ if path.exists()), None)
    if program is None:
        skip_without("rabbitmq-server")
    (folder / "plugins").write_text("[].")
    (folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    local = "-kernel inet_dist_use_interface {127,0,0,1} -setcookie tests"
    env = os.environ | {
        "HOME": str(folder),
        "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_NODENAME": f"tests-{port}@localhost",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{local} +S 1:1 {options}",
    }
    with (folder / "rabbitmq.log").open("wb") as log:
        process = subprocess.Popen([str(program)], env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: _has_started(process, folder / "rabbitmq.log"), what="RabbitMQ starts")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _has_started(process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    return "Starting broker... completed" in log.read_text()
