"""pytest plugin of the tools that passes the name of the running test to coverage, and appends outcomes to a file.

The environment variable ``TEST_OUTCOMES`` names the file. Each line is a JSON list: node id, phase ("setup", "call",
"teardown"), outcome ("passed", "failed", "skipped") and duration in seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Pass the name of the test to coverage if this process is measured."""
    if "coverage" in sys.modules:
        from .measure_coverage import enter_context  # noqa: PLC0415 - coverage may not be installed

        enter_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append the outcome to the file. Do nothing in xdist workers, whose reports also reach the main process."""
    path = os.environ.get("TEST_OUTCOMES")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.when, report.outcome, report.duration]) + "\n")
