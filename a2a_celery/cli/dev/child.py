"""Child process of the supervisor, and the terminal that all children share."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from threading import Lock, Thread

import click

REMEMBERED = 20
"""Number of output lines that are printed again if a child ends unexpectedly."""

DEV = "dev"

URGENT = re.compile(r' (ERROR|CRITICAL)[ /]|"level": "(ERROR|CRITICAL)"|listening on .* without authentication')
"""Log lines in text or JSON that are shown, with their tracebacks, even if the output is folded."""

RECORD = re.compile(r'\[?\d{4}-\d\d-\d\d |\{"time": ')
"""Beginning of a log record in text or JSON. A line that does not match continues the previous record."""

OUTPUT_TIMEOUT = 0.5
"""Seconds to wait for the remaining output of a child that has ended. A grandchild may keep the pipe open."""

POLL_INTERVAL = 0.05
"""Seconds between two checks of the end of a process."""

NAME_WIDTH = 7
COLOURS = {DEV: "cyan", "redis": "red", "worker": "green", "watcher": "yellow", "gateway": "magenta"}


class Screen:
    """Terminal shared by the supervisor and its children. Each line is written as a whole, with the name of its
    process.

    Attributes:
        is_folded: True until the fleet is ready for the first time, to hide the output of children except for urgent
            lines. The output of later starts is always shown, because a new worker continues runs at once.
    """

    def __init__(self, *, is_folded: bool) -> None:
        self.is_folded = is_folded
        self._lock = Lock()
        self._urgent: dict[str, bool] = {}
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an agent may print characters that this terminal cannot show

    def say(self, name: str, line: str) -> None:
        """Write one line, in colour if the output is a terminal."""
        self.show(click.style(f"{name:{NAME_WIDTH}} | ", fg=COLOURS.get(name)) + line)

    def forward(self, name: str, line: str) -> None:
        """Write one line of a child. While the output is folded, only lines of urgent log records are written."""
        if URGENT.search(line):
            self._urgent[name] = True
        elif RECORD.match(line):
            self._urgent[name] = False
        if not self.is_folded or self._urgent.get(name):
            self.say(name, line)

    def show(self, text: str) -> None:
        """Write `text` without the name of a process."""
        # a closed terminal must not keep the supervisor from stopping its children
        with self._lock, suppress(OSError):
            click.echo(text)


class Child:
    """Child process that leads a process group, and its output.

    Attributes:
        pid: Id of the process and of its group.
        started_at: Monotonic time of the start in seconds.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path | None,
        screen: Screen,
        has_terminal: bool,
    ) -> None:
        """Start the process.

        Args:
            has_terminal: True to connect the process to the terminal directly, so that a debugger works. False to
                read its output from a pipe.
        """
        self.name = name
        self._screen = screen
        self._last: deque[str] = deque(maxlen=REMEMBERED)
        self.started_at = time.monotonic()
        self._popen = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=None if has_terminal else subprocess.DEVNULL,
            stdout=None if has_terminal else subprocess.PIPE,
            stderr=None if has_terminal else subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._reader = Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return await wait_for_exit(self._popen)

    def last_lines(self) -> list[str]:
        """Return the last output lines of a child that has ended."""
        self._reader.join(OUTPUT_TIMEOUT)
        return list(self._last)

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its group."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process group, and return when the process has ended and its output has been shown."""
        kill_group(self.pid)
        self._popen.wait()
        self._reader.join(OUTPUT_TIMEOUT)

    def _read(self) -> None:
        if self._popen.stdout is None:
            return
        with self._popen.stdout as lines:
            for line in lines:
                self._last.append(line.rstrip("\n"))
                self._screen.forward(self.name, self._last[-1])


async def wait_for_exit(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process.

    Returns:
        The exit code, or the negative number of the signal that ended the process.
    """
    while (code := process.poll()) is None:  # noqa: ASYNC110 - no event for the end exists on all systems
        await asyncio.sleep(POLL_INTERVAL)
    return code


def kill_group(pgid: int) -> None:
    """Kill a process group, which may be empty."""
    with suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a group of zombies
        os.killpg(pgid, signal.SIGKILL)
