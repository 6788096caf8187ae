"""Import of agents that are given by name, before any run needs them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress

from ...agents import Agent
from ...errors import ConfigError
from .adapters import load

NO_REPLY = "its import ends the process"


def import_errors(agents: Iterable[Agent]) -> dict[str, str]:
    """Return the reason for each agent whose code cannot be imported, by name.

    A forked child imports the code. An event loop, a thread or a connection that an import leaves would not survive the
    fork of a pool process, so the caller must not have it.
    """
    named = {agent.name: agent.code for agent in agents if isinstance(agent.code, str)}
    if not named:
        return {}
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            sys.stdout = sys.stderr  # standard output belongs to the caller
            os.dup2(2, 1)
            os.write(writing, json.dumps(_errors(named)).encode() + b"\n")
        finally:
            os._exit(0)  # no cleanup: it belongs to the parent
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        line = pipe.readline()
    with suppress(ChildProcessError):  # the process ignores the ends of its children
        os.waitpid(pid, 0)
    return dict(json.loads(line)) if line else dict.fromkeys(named, NO_REPLY)


def _errors(named: dict[str, str]) -> dict[str, str]:
    errors = {}
    for name, code in named.items():
        try:
            load(code)
        except ConfigError as e:
            errors[name] = str(e).strip().partition("\n")[0]
    return errors
