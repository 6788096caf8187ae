"""Program on a pseudo-terminal, with methods for input and output."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from tests.support.processes.fork_server import start
from tests.support.waiting import eventually

CTRL_C = "\x03"

END_LIMIT = 180.0
"""Seconds after which the test assumes that the program hangs."""


class Terminal:
    """Program on a terminal. `screen` is the output so far."""

    def __init__(self, code: str, arguments: Sequence[str]) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", __name__, os.ttyname(slave), code, *arguments]
        with os.fdopen(slave, "wb", buffering=0) as output:
            self.popen = start(command, os.environ, output)
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

    def waits_for_input(self) -> None:
        """Wait until the program sleeps. Python loses a Ctrl-C that arrives directly before it reads the terminal."""
        process = psutil.Process(self.popen.pid)
        eventually(lambda: process.status() == psutil.STATUS_SLEEPING, what="the program waits for input")

    def ends(self) -> int:
        """Wait until the program exits and return the exit code."""
        try:
            code = self.popen.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.screen}") from None
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


def _run_on_terminal(path: str, code: str, *arguments: str) -> None:
    """Run `code` with the terminal at `path` as standard input and controlling terminal.

    The first terminal that a session leader opens becomes the controlling terminal, which turns Ctrl-C into SIGINT.
    Programs that inherit an ignored SIGINT from a background shell need the default handler. The streams of the fork
    server expect other files than a terminal.
    """
    descriptor = os.open(path, os.O_RDWR)
    os.dup2(descriptor, 0)
    os.close(descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _run_on_terminal(*sys.argv[1:])
