"""Guard of the test kit, which cleans up if the test process is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from a2a_celery.cli.dev.child import kill_group
from a2a_celery.testing.process_guard import ProcessGuard
from tests.support.waiting import eventually

TEST_PROCESS = """
import subprocess, sys
from pathlib import Path
from a2a_celery.testing.process_guard import ProcessGuard

guard = ProcessGuard()
guard.add_folder(Path(sys.argv[1]))
guard.add_group(int(sys.argv[2]))
print("registered", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """Process that leads a group."""
    server = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    yield server
    kill_group(server.pid)
    server.wait()


def test_a_killed_test_leaves_neither_processes_nor_folders(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "redis.log").write_text("started")
    command = [sys.executable, "-c", TEST_PROCESS, str(folder), str(server.pid)]
    test = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert test.stdout is not None
    assert test.stdout.readline() == b"registered\n"
    assert folder.exists()

    test.kill()
    test.communicate()

    assert server.wait() == -9
    eventually(lambda: not folder.exists(), what="the folder is removed")


def test_a_released_guard_ends_without_cleaning_up(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    earlier_shells = shells()  # guards of servers that other tests of this process share
    guard = ProcessGuard()
    guard.add_folder(tmp_path)
    guard.add_group(server.pid)

    guard.release()

    assert server.poll() is None
    assert tmp_path.exists()
    assert shells() <= earlier_shells


def shells() -> set[int]:
    """Return the ids of the shells that this process has started."""
    return {child.pid for child in psutil.Process(os.getpid()).children() if child.name() == "sh"}
