"""Program on a pseudo-terminal, with methods for input and output."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from . import ROOT
from .waiting import eventually

CTRL_C = "\x03"

END_LIMIT = 180.0
"""Seconds after which the test assumes that the program hangs."""

TAKE_THE_TERMINAL = (
    "import os, signal; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
    "signal.signal(signal.SIGINT, signal.default_int_handler)"
)
"""Code that makes the program receive Ctrl-C.

The first terminal that a session leader opens becomes the controlling terminal, which turns Ctrl-C into SIGINT.
Programs that inherit an ignored SIGINT from a background shell need the default handler.
"""


class Terminal:
    """Program on a terminal. `screen` is the output so far."""

    def __init__(self, code: str, arguments: Sequence[str]) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-c", f"{TAKE_THE_TERMINAL}; {code}", *arguments]
        self.popen = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True
        )
        os.close(slave)
        self.screen = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def shows(self, text: str, times: int = 1) -> None:
        """Wait until the output contains `text` at least `times` times. Fail if the program exits before that."""

        def is_shown() -> bool:
            more_may_come = self.popen.poll() is None or self._reader.is_alive()
            if self.screen.count(text) >= times:
                return True
            assert more_may_come, f"it ended:\n{self.screen}"
            return False

        eventually(is_shown, what=f"{text!r} is shown in\n{self.screen}")

    def types(self, text: str) -> None:
        """Type `text`. A newline stands for the Enter key."""
        os.write(self._master, text.encode())

    def ends(self) -> int:
        """Wait until the program exits and return the exit code."""
        code = self.popen.wait(END_LIMIT)
        self._reader.join(10)
        return code

    def close(self) -> None:
        """Kill the program if it is running, and close the terminal."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(10)
        self._reader.join(10)
        os.close(self._master)

    def _read(self) -> None:
        with suppress(OSError):  # the program has closed the terminal
            while data := os.read(self._master, 65536):
                self.screen += data.decode(errors="replace")


@contextmanager
def terminal(code: str, *arguments: str) -> Iterator[Terminal]:
    """Run Python `code` with `arguments` on a new terminal."""
    instance = Terminal(code, arguments)
    try:
        yield instance
    finally:
        instance.close()
