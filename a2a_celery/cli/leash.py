"""Nothing outlives a supervisor, even one that is killed: a small guardian process at the other end of a pipe.

`Leash` is the supervisor's end. The guardian, in a session of its own, remembers process groups and folders; when the
pipe closes without a word it ends the groups and removes the folders. No prctl, no polling: the same on Linux and
macOS. This file runs by its path and imports nothing but the standard library, so the guardian is small and quick.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

GRACE = 2.0
"""Seconds between the guardian's SIGTERM and its SIGKILL."""

GONE = 1.0
"""Seconds it waits for the killed to be gone, before it removes the folders."""

EVERY = 0.05


class Leash:
    """A guardian process, and what it shall end when this process is gone."""

    def __init__(self) -> None:
        # -I -S: no site, no environment, no current folder; nothing of ours is imported
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def hold_group(self, pgid: int) -> None:
        """The guardian ends this process group."""
        self._tell(b"group %d\n" % pgid)

    def hold_folder(self, folder: Path) -> None:
        """The guardian removes this folder."""
        self._tell(b"folder " + os.fsencode(folder) + b"\n")

    def let_go(self) -> None:
        """Ends the guardian; nothing is left for it to do."""
        self._tell(b"done\n")
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        try:
            self._guardian.wait(2)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()

    def _tell(self, line: bytes) -> None:
        assert self._guardian.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it: the orderly way still works
            self._guardian.stdin.write(line)


def signal_group(pgid: int, number: int) -> bool:
    """Sends a signal to a whole process group (0: none); whether there was somebody to get it."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):  # PermissionError: macOS, for a group of zombies
        return False
    return True


def guard(lines: BinaryIO) -> None:
    """Reads what to hold, until told that all is done or until the supervisor is gone."""
    groups: list[int] = []
    folders: list[bytes] = []
    for line in lines:
        word, _, value = line.rstrip(b"\n").partition(b" ")
        if word == b"done":
            return
        if word == b"group":
            groups.append(int(value))
        elif word == b"folder":
            folders.append(value)
    _end(groups)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _end(groups: list[int]) -> None:
    left = [pgid for pgid in reversed(groups) if signal_group(pgid, signal.SIGTERM)]
    left = _wait(left, GRACE)
    for pgid in left:
        signal_group(pgid, signal.SIGKILL)
    _wait(left, GONE)


def _wait(groups: Iterable[int], seconds: float) -> list[int]:
    """Waits until the groups are empty; gives those that are not in time."""
    deadline = time.monotonic() + seconds
    left = list(groups)
    while True:
        left = [pgid for pgid in left if signal_group(pgid, 0)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(EVERY)


if __name__ == "__main__":
    # whoever ends the supervisor this way must not end the guardian with it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(sys.stdin.buffer)
