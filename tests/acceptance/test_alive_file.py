"""Alive file of a watcher for liveness probes, and a secret key that is read from a file, as in compose/."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.waiting import eventually

KEY = "a-key-for-the-tests-of-32-characters-and-more"


def test_it_is_touched_as_long_as_the_store_is_reached(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with running_fleet(tmp_path) as fleet:
        watcher = fleet.start("watcher", "a2a", "watcher", "--alive-file", str(alive))
        eventually(alive.exists, what="it says that it is alive")
        first = alive.stat().st_mtime_ns
        eventually(lambda: alive.stat().st_mtime_ns > first, what="it says so again")

        fleet.redis.stop()
        failure_line = "heartbeat: a tick failed"
        watcher.wait_for_output(failure_line)
        alive.unlink(missing_ok=True)  # ticks before the outage have touched the file
        eventually(lambda: watcher.output().count(failure_line) > 1, what="the watcher scans again")
        assert not alive.exists()


def test_the_key_may_be_in_a_file(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")

    watcher = fleet.watcher(A2A_SECRET_KEY_FILE=str(tmp_path / "key"))
    assert "deliverer" in watcher.output()

    for command in (("a2a", "gateway", "--port", "0"), ("a2a", "watcher"), ("a2a", "dev", "--port", "0")):
        result = fleet.command(*command, A2A_SECRET_KEY_FILE=str(tmp_path / "none"))
        assert result.returncode == 1
        [line] = result.stderr.splitlines()
        assert line == f"Error: A2A_SECRET_KEY_FILE = {tmp_path}/none: No such file or directory"
