"""Child process of the supervisor, and the terminal that all children share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from threading import Event, Lock, Thread

import click

from .process_guard import signal_group

REMEMBERED = 20
"""Number of output lines that are printed again if a child ends unexpectedly."""

DEV = "dev"

URGENT = re.compile(r' (ERROR|CRITICAL)[ /]|"level": "(ERROR|CRITICAL)"|listening on .* without authentication')
"""Log lines in text or JSON that are shown, with their tracebacks, even if the output is folded."""

RECORD = re.compile(r'\[?\d{4}-\d\d-\d\d |\{"time": ')
"""Beginning of a log record in text or JSON. A line that does not match continues the previous record."""

OUTPUT_TIMEOUT = 0.5
"""Seconds to wait for the remaining output of a child that has ended. A grandchild may keep the pipe open."""

NAME_WIDTH = 7
COLOURS = {DEV: "cyan", "redis": "red", "worker": "green", "watcher": "yellow", "gateway": "magenta"}


class Screen:
    """Terminal shared by the supervisor and its children. Each line is written as a whole, with the name of its
    process.

    Attributes:
        is_folded: True while the output of children is hidden, except for urgent lines.
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
    """Child process and its output.

    Attributes:
        code: Exit code, or the negative number of the signal that ended the process, or None while the process runs.
        has_terminal: True if the process uses the terminal directly, and False if its output is piped.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path | None,
        screen: Screen,
        on_end: Callable[[Child], None],
        hide: str | None = None,
        has_terminal: bool = False,
    ) -> None:
        """Start the process.

        Args:
            on_end: Function that a thread calls when the process has ended.
            hide: Text of the lines that are not shown, or None to show all lines.
            has_terminal: True to connect the process to the terminal directly, so that a debugger works.
        """
        self.name = name
        self.code: int | None = None
        self._screen = screen
        self._hide = hide
        self._last: deque[str] = deque(maxlen=REMEMBERED)
        self._ended_event = Event()
        self.has_terminal = has_terminal
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
        self._reader = Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()
        Thread(target=self._wait, args=(on_end,), name=f"{name}-end", daemon=True).start()

    @property
    def pgid(self) -> int:
        """Id of the process group whose leader is the child."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        return not self._ended_event.is_set()

    def last_lines(self) -> list[str]:
        """Return the last output lines of a child that has ended."""
        self._reader.join(OUTPUT_TIMEOUT)
        return list(self._last)

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its group."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pgid, number)

    def kill(self) -> None:
        """Kill the process group, and return when the process has ended and its output has been shown."""
        signal_group(self.pgid, signal.SIGKILL)
        self._ended_event.wait()
        self._reader.join(OUTPUT_TIMEOUT)

    def _read(self) -> None:
        if self._popen.stdout is None:
            return
        with self._popen.stdout as lines:
            for line in lines:
                if self._hide is None or self._hide not in line:
                    self._last.append(line.rstrip("\n"))
                    self._screen.forward(self.name, self._last[-1])

    def _wait(self, on_end: Callable[[Child], None]) -> None:
        self.code = self._popen.wait()
        self._ended_event.set()
        on_end(self)
