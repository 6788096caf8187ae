"""Child processes of a tool: functions that wait for a child, and kill all descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that `descendants` finds each of them."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Return the processes that this process has started, directly or indirectly."""
    return psutil.Process().children(recursive=True)


def wait(popen: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Wait for a child and return the exit code, or None if the child still runs at `deadline`, a time of
    `time.monotonic`."""
    while popen.poll() is None:
        if time.monotonic() > deadline:
            return None
        _reap_orphans(popen)
        time.sleep(0.02)
    return popen.returncode


def _reap_orphans(child: subprocess.Popen[bytes]) -> None:
    """Reap terminated orphans, but not `child`, so that tests that wait for the end of a process do not see a
    zombie."""
    with suppress(ChildProcessError):
        while (
            exit_info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ) and exit_info.si_pid != child.pid:
            os.waitpid(exit_info.si_pid, 0)


def interrupt(popen: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to pytest, and wait ten seconds for the teardown of fixtures."""
    popen.send_signal(signal.SIGINT)
    wait(popen, time.monotonic() + 10)


def kill_descendants() -> None:
    """Kill all descendants, including processes that start in the meantime."""
    deadline = time.monotonic() + 10
    while (processes := descendants()) and time.monotonic() < deadline:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def exit_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit, so that ``finally`` blocks run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
