"""Descendants of a tool: waiting for a child, and ending every process that it leaves."""

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
    """Return the processes that this process started, directly or not."""
    return psutil.Process().children(recursive=True)


def wait(popen: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Return the exit code of a child, or None if it runs at `deadline` (of `time.monotonic`)."""
    while popen.poll() is None:
        if time.monotonic() > deadline:
            return None
        _reap_orphans(popen)
        time.sleep(0.02)
    return popen.returncode


def _reap_orphans(child: subprocess.Popen[bytes]) -> None:
    """Collect adopted processes that ended, so that a test which waits for their end sees it; not the child."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child.pid:
            os.waitpid(ended.si_pid, 0)


def interrupt(popen: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to pytest and give its fixtures ten seconds for their teardown."""
    popen.send_signal(signal.SIGINT)
    wait(popen, time.monotonic() + 10)


def kill_descendants() -> None:
    """Continue and kill every descendant, also those that start in between."""
    deadline = time.monotonic() + 10
    while (processes := descendants()) and time.monotonic() < deadline:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def exit_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit, so that ``finally`` blocks run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
