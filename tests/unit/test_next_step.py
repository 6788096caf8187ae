"""Last line of a pytest run, which praises only a complete run without a failed, skipped or missing test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools.next_step import NEXT

RunPytest = Callable[..., tuple[int, str]]

XDIST = ("-p", "xdist", "-n", "1")

PASSING = "def test_first(): pass\ndef test_second(): pass\n"
SKIPPED = "import pytest\ndef test_third(): pytest.skip('no server here')\n"
INTERRUPTED = "def test_third(): raise KeyboardInterrupt\n"  # SIGINT may be ignored in the process of this test


RUNNER = """
import json, os, sys
import tests.tools.next_step
from _pytest.config import get_config

get_config()
for line in sys.stdin:
    folder, *options = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT), 1)
        status = tests.tools.next_step.pytest.main(options)
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Program that forks a process with pytest for each line of its input, and prints the exit code of the process. The
import of pytest in each process would take as long as the tests."""


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    """Running program `RUNNER`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", RUNNER], env=env, text=True, **pipes) as process:
        yield process


@pytest.fixture
def run_pytest(runner: subprocess.Popen[str], tmp_path: Path) -> RunPytest:
    """Function that runs pytest in a project with two test files, and returns its exit code and output."""

    def run(code: str, *options: str) -> tuple[int, str]:
        assert runner.stdin is not None
        assert runner.stdout is not None
        (tmp_path / "suite").mkdir()
        (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = suite\n")
        (tmp_path / "suite" / "test_a.py").write_text(PASSING)
        (tmp_path / "suite" / "test_b.py").write_text(code)
        plugins = ("-p", "no:cacheprovider", "-p", "tests.tools.next_step")
        print(json.dumps([str(tmp_path), *plugins, *options]), file=runner.stdin, flush=True)
        return int(runner.stdout.readline()), (tmp_path / "output").read_text()

    return run


@pytest.mark.parametrize("options", [(), ("-x",), XDIST])
def test_a_complete_run_suggests_the_next_step(run_pytest: RunPytest, options: tuple[str, ...]) -> None:
    code, output = run_pytest(PASSING, *options)

    assert code == 0, output
    assert output.count(NEXT) == 1


@pytest.mark.parametrize(
    ("code", "options", "exit_code"),
    [
        (INTERRUPTED, (), 2),
        (INTERRUPTED, XDIST, 2),
        ("def test_third(): assert False\n", (), 1),
        ("def test_third(): assert False\n", ("--maxfail", "1", *XDIST), 2),
        ("import no_such_module\n", (), 2),
        (SKIPPED, (), 0),
        (PASSING, ("--deselect", "suite/test_b.py::test_first"), 0),
        (PASSING, ("-k", "first"), 0),
        (PASSING, ("--ignore", "suite/test_b.py"), 0),
        (PASSING, ("suite",), 0),
        (PASSING, ("--collect-only",), 0),
    ],
)
def test_any_other_run_suggests_nothing(
    run_pytest: RunPytest, code: str, options: tuple[str, ...], exit_code: int
) -> None:
    returncode, output = run_pytest(code, *options)

    assert NEXT not in output
    assert returncode == exit_code, output
