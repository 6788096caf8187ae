"""One child process of a supervisor: started in a group of its own, its output shown, its end reported."""

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

from .leash import signal_group

REMEMBERED = 20
"""Lines of a child's output that are shown again when it ends unexpectedly."""

LAST_WORDS = 0.5
"""Seconds to read what an ended child has written; a child of its own may hold the pipe open."""

NAME_WIDTH = 7
COLOURS = {"dev": "cyan", "redis": "red", "worker": "green", "watcher": "yellow", "gateway": "magenta"}


class Screen:
    """Where a supervisor and its children speak: a line at a time, never mixed, with the speaker's name before it."""

    def __init__(self) -> None:
        self._lock = Lock()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an agent may print what this terminal can't show

    def say(self, who: str, line: str) -> None:
        """Shows one line; coloured on a terminal only."""
        self.show(click.style(f"{who:{NAME_WIDTH}} | ", fg=COLOURS.get(who)) + line)

    def show(self, text: str) -> None:
        """Shows lines as they are."""
        # a terminal that is gone must not keep anybody from stopping the children
        with self._lock, suppress(OSError):
            click.echo(text)


class Child:
    """A running child process and its output.

    Attributes:
        code: its exit code, or the negative number of the signal that ended it; None while it runs.
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
        """Starts it. `ended` is called from a thread. Lines that contain `hide` are not shown."""
        self.name = name
        self.code: int | None = None
        self._screen = screen
        self._hide = hide
        self._last: deque[str] = deque(maxlen=REMEMBERED)
        self._gone = Event()
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
        """The process group that it leads."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        return not self._gone.is_set()

    def last_lines(self) -> list[str]:
        """The last lines of an ended child."""
        self._reader.join(LAST_WORDS)
        return list(self._last)

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone: its own children are its own business."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pgid, number)

    def kill(self) -> None:
        """Kills what is left of its group; returns when the process is gone and its output shown."""
        signal_group(self.pgid, signal.SIGKILL)
        self._gone.wait()
        self._reader.join(LAST_WORDS)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            for line in lines:
                if self._hide is None or self._hide not in line:
                    self._last.append(line.rstrip("\n"))
                    self._screen.say(self.name, self._last[-1])

    def _wait(self, ended: Callable[[Child], None]) -> None:
        self.code = self._popen.wait()
        self._gone.set()
        ended(self)
