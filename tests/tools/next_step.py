"""Hook of pytest that suggests a next step after the complete change tier has passed."""

from __future__ import annotations

from typing import Any

import pytest

NEXT = "All of it works. Next: .venv/bin/a2a-celery demo runs sample agents, and prints what to send them."

SELECTIONS = ("markexpr", "keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly")
"""Options of pytest that leave tests out."""


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Suggest a next step if every test of the change tier has run and passed.

    pytest-xdist reports the tests of all its processes to this process.
    """
    is_selection = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    is_selection = is_selection or any(config.getoption(name, None) for name in SELECTIONS)
    outcomes = {name for name, reports in terminalreporter.stats.items() if reports}
    if exitstatus == pytest.ExitCode.OK and not is_selection and outcomes <= {"", "passed", "deselected", "warnings"}:
        terminalreporter.write_line(NEXT)
