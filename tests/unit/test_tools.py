"""Coverage and flakiness reports of the contributors' tools."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil

from tests.support.waiting import eventually
from tests.tools import stress
from tests.tools.coverage_table import COUNTS, table


def test_the_coverage_table_adds_up_the_files_of_a_package() -> None:
    files = {
        "a2a_celery/clock.py": (10, 5, 4, 1),
        "/checkout/a2a_celery/store/keys.py": (30, 30, 0, 0),
        "/checkout/a2a_celery/store/scan/page.py": (10, 9, 2, 1),
    }

    rows = table({path: dict(zip(COUNTS, counts, strict=True)) for path, counts in files.items()}).splitlines()[1:]

    assert [row.split() for row in rows] == [
        ["(top", "level)", "10", "5", "50.0", "4", "1", "25.0"],
        ["store", "40", "39", "97.5", "2", "1", "50.0"],
        ["total", "50", "44", "88.0", "6", "2", "33.3"],
    ]


def test_a_test_that_fails_in_any_phase_has_failed() -> None:
    phases = [
        ("t1", "call", "passed"), ("t1", "teardown", "failed"), ("t2", "setup", "failed"), ("t3", "setup", "passed"),
        ("t3", "call", "passed"), ("t4", "setup", "skipped"), ("t5", "call", "failed"), ("t5", "teardown", "failed"),
    ]  # fmt: skip

    outcomes = stress.read_outcomes([json.dumps([*phase, 0.1]) for phase in phases])

    assert outcomes == (1, ("t1", "t2", "t5"))


def test_the_flakiness_report_counts_each_test_s_failures() -> None:
    runs = [
        stress.Run(1.0, 3, (), 0),
        stress.Run(2.0, 1, ("t1", "t2"), 1),
        stress.Run(3.0, 2, ("t2",), 1),
        stress.Run(4.0, 1, (), None),
        stress.Run(5.0, 0, (), 4),
    ]

    lines = stress.report(runs).splitlines()

    assert [line.split()[:4] for line in lines[1:4]] == [
        ["1", "1.0", "3", "0"],
        ["2", "2.0", "1", "2"],
        ["3", "3.0", "2", "1"],
    ]
    assert lines[4].endswith("interrupted")
    assert lines[5].endswith("pytest's exit code 4")
    assert lines[6:] == ["2 of 5  t2", "1 of 5  t1"]


def test_a_process_that_a_test_stops_while_it_is_suspended_stays_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as popen:
        process = psutil.Process(popen.pid)
        try:
            with stress.suspend(process):
                pass  # the process may not have processed the signal yet
            eventually(lambda: process.status() != psutil.STATUS_STOPPED, what="it continues")
            with stress.suspend(process):
                eventually(lambda: process.status() == psutil.STATUS_STOPPED, what="it is suspended")
                popen.send_signal(signal.SIGSTOP)
            if sys.platform == "linux":  # elsewhere, pending signals cannot be read
                assert process.status() == psutil.STATUS_STOPPED
        finally:
            popen.kill()
