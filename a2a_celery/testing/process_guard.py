"""Guard that ends processes and removes folders if the test process dies, also by SIGKILL."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import suppress
from pathlib import Path


class ProcessGuard:
    """Shell whose input is a pipe from this process. When this process dies, the pipe closes, the shell exits, and its
    exit trap kills the registered process groups and removes the registered folders."""

    def __init__(self) -> None:
        self._kills: list[str] = []
        self._removals: list[str] = []
        self._shell = subprocess.Popen(
            ["/bin/sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def add_group(self, pgid: int) -> None:
        """Register a process group."""
        self._kills.append(f"kill -9 -{pgid}")
        self._set_trap()

    def add_folder(self, folder: Path) -> None:
        """Register a folder."""
        self._removals.append(f"rm -rf {shlex.quote(str(folder))}")
        self._set_trap()

    def release(self) -> None:
        """End the shell without its trap."""
        self._shell.kill()
        self._shell.communicate()

    def _set_trap(self) -> None:
        assert self._shell.stdin is not None
        commands = "; ".join([*self._kills, *self._removals])
        with suppress(BrokenPipeError):  # the shell was killed, but an orderly end still works
            self._shell.stdin.write(f"trap {shlex.quote(commands)} EXIT\n".encode())
