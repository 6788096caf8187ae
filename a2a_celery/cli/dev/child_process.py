"""Child process of the supervisor, in a separate process group, with its output on the screen."""

from __future__ import annotations

import os
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
"""Lines of output that are repeated when a child ends unexpectedly."""

OUTPUT_TIMEOUT = 0.5
"""Seconds to read the output of an ended child. A grandchild may hold the pipe open."""

NAME_WIDTH = 7
COLOURS = {"dev": "cyan", "redis": "red", "worker": "green", "watcher": "yellow", "gateway": "magenta"}


class Screen:
    """Terminal shared by the supervisor and its children. Writes whole lines, prefixed with the writer's name."""

    def __init__(self) -> None:
        self._lock = Lock()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an agent may print characters that this terminal cannot show

    def say(self, who: str, line: str) -> None:
        """Write one line, coloured on a terminal only."""
        self.show(click.style(f"{who:{NAME_WIDTH}} | ", fg=COLOURS.get(who)) + line)

    def show(self, text: str) -> None:
        """Write lines unchanged."""
        # a closed terminal must not prevent the stop of the children
        with self._lock, suppress(OSError):
            click.echo(text)


class Child:
    """A running child process and its output.

    Attributes:
        code: Exit code, or the negative number of the signal that ended the process. None while it runs.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path | None,
        screen: Screen,
        ended: Callable[[Child], None],
        hide: str | None = None,
    ) -> None:
        """Start the process. `ended` is called from a thread. Lines that contain `hide` are not shown."""
        self.name = name
        self.code: int | None = None
        self._screen = screen
        self._hide = hide
        self._last: deque[str] = deque(maxlen=REMEMBERED)
        self._ended_event = Event()
        self._popen = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()
        Thread(target=self._wait, args=(ended,), name=f"{name}-end", daemon=True).start()

    @property
    def pgid(self) -> int:
        """Id of the process group that the child leads."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        return not self._ended_event.is_set()

    def last_lines(self) -> list[str]:
        """Return the last lines of an ended child."""
        self._reader.join(OUTPUT_TIMEOUT)
        return list(self._last)

    def signal(self, number: int) -> None:
        """Send a signal to the process alone, not to its group."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pgid, number)

    def kill(self) -> None:
        """Kill the process group. Return when the process has ended and its output is shown."""
        signal_group(self.pgid, signal.SIGKILL)
        self._ended_event.wait()
        self._reader.join(OUTPUT_TIMEOUT)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            for line in lines:
                if self._hide is None or self._hide not in line:
                    self._last.append(line.rstrip("\n"))
                    self._screen.say(self.name, self._last[-1])

    def _wait(self, ended: Callable[[Child], None]) -> None:
        self.code = self._popen.wait()
        self._ended_event.set()
        ended(self)
