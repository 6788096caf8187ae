"""Guard against orphaned processes: a small guardian process that cleans up if the supervisor is killed.

`ProcessGuard` is the supervisor's end of a pipe. The guardian, in a separate session, keeps a list of process groups
and folders. When the pipe closes without "done", the guardian ends the groups and removes the folders. The guard
works on Linux and macOS, without prctl and without polling. The guardian runs this file by its path, so the file
imports only the standard library.
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

TERMINATE_TIMEOUT = 2.0
"""Maximum seconds from the guardian's SIGTERM to its SIGKILL."""

KILL_TIMEOUT = 1.0
"""Maximum seconds from SIGKILL to the removal of the folders."""

GROUP_POLL_INTERVAL = 0.05


class ProcessGuard:
    """Handle of a guardian process that ends the registered process groups, and removes the registered folders, if this
    process dies before `release`."""

    def __init__(self) -> None:
        # -I -S: no site module, environment or current folder, so that only the standard library is imported
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def add_group(self, pgid: int) -> None:
        """Register a process group that the guardian must end."""
        self._send(b"group %d\n" % pgid)

    def add_folder(self, folder: Path) -> None:
        """Register a folder that the guardian must remove."""
        self._send(b"folder " + os.fsencode(folder) + b"\n")

    def release(self) -> None:
        """Stop the guardian process without cleaning up."""
        self._send(b"done\n")
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        try:
            self._guardian.wait(2)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()

    def _send(self, line: bytes) -> None:
        assert self._guardian.stdin is not None
        with suppress(BrokenPipeError):  # the guardian was killed, but an orderly stop still works
            self._guardian.stdin.write(line)


def signal_group(pgid: int, number: int) -> bool:
    """Send a signal to a process group. Return False if the group has no processes."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):  # macOS raises PermissionError for a group of zombies
        return False
    return True


def run_guardian(lines: BinaryIO) -> None:
    """Read registrations from `lines` until "done". If the supervisor dies first, clean up."""
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
    live_groups = [pgid for pgid in reversed(groups) if signal_group(pgid, signal.SIGTERM)]
    live_groups = _wait(live_groups, TERMINATE_TIMEOUT)
    for pgid in live_groups:
        signal_group(pgid, signal.SIGKILL)
    _wait(live_groups, KILL_TIMEOUT)


def _wait(groups: Iterable[int], seconds: float) -> list[int]:
    """Wait up to `seconds` until the process groups are empty, and return the groups that are not."""
    deadline = time.monotonic() + seconds
    live_groups = list(groups)
    while True:
        live_groups = [pgid for pgid in live_groups if signal_group(pgid, 0)]
        if not live_groups or time.monotonic() > deadline:
            return live_groups
        time.sleep(GROUP_POLL_INTERVAL)


if __name__ == "__main__":
    # a signal sent to the supervisor's terminal must not end the guardian
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    run_guardian(sys.stdin.buffer)
