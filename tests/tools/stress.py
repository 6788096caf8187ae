"""Flakiness report: repeat tests under load, and suspend random processes of the tests for a second.

    python -m tests.tools.stress --runs 10 tests/execution
    python -m tests.tools.stress --runs 5 --quiet -n 2 --dist=loadfile     # no load: what fails anyway

Arguments that the tool does not know are passed to pytest. While pytest runs, two busy loops for each core compete with
it. About once a second, a random process among pytest's descendants receives SIGSTOP, and SIGCONT a second later.
pytest, its xdist workers, and processes that a test has stopped are excluded. A process that a test stops during that
second stays stopped (on Linux).

The report contains a table of the runs, and the number of failures of each failed test. The exit code is 1 if a test
failed, or if a run broke off. A run that exceeds `--limit` is interrupted and counts as broken off. `--seed` repeats
the random choices.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from .processes import adopt_orphans, descendants, exit_on_sigterm, interrupt, kill_descendants, wait

ROOT = Path(__file__).resolve().parents[2]
STOP_DURATION = 1.0
XDIST_WORKER = "import sys;exec(eval(sys.stdin.readline()))"
BUSY_LOOP = """
import os, sys, time
parent, deadline = os.getppid(), time.monotonic() + float(sys.argv[1])
while os.getppid() == parent and time.monotonic() < deadline:
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True)
class Run:
    """Result of a pytest run.

    Attributes:
        seconds: Duration of the run.
        passed_count: Number of passed tests.
        failures: Node ids of failed tests.
        code: Exit code of pytest, or None if the run was interrupted at the limit.
    """

    seconds: float
    passed_count: int
    failures: tuple[str, ...]
    code: int | None

    @property
    def is_whole(self) -> bool:
        """True if pytest ran every test."""
        return self.code in {0, 1} and (self.code == 1) == bool(self.failures)


def read_outcomes(lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Parse the lines of `pytest_plugin`. Return the number of passed tests, and the tests that failed in any phase."""
    test_names: set[str] = set()
    failures: dict[str, None] = {}
    for line in lines:
        test, phase, outcome, *_ = json.loads(line)
        if outcome == "failed":
            failures[test] = None
        elif outcome == "passed" and phase == "call":
            test_names.add(test)
    return len(test_names - failures.keys()), tuple(failures)


def report(runs: Sequence[Run]) -> str:
    """Return the table of the runs, and the failed tests in descending order of failures."""
    lines = [f"{'run':>4}{'seconds':>9}{'passed':>8}{'failed':>8}"]
    for number, run in enumerate(runs, 1):
        outcome = (
            ""
            if run.is_whole
            else "  interrupted"
            if run.code is None
            else f"  broke off, pytest's exit code {run.code}"
        )
        lines.append(f"{number:>4}{run.seconds:>9.1f}{run.passed_count:>8}{len(run.failures):>8}{outcome}")
    failures = Counter(test for run in runs for test in run.failures)
    lines += [f"{count} of {len(runs)}  {test}" for test, count in failures.most_common()]
    return "\n".join(lines)


def targets(pytest: int, processes: Sequence[psutil.Process], load: set[int]) -> list[psutil.Process]:
    """Return the processes that may be suspended. Excluded are pytest, its xdist workers, busy loops, and processes
    that are already stopped."""
    selection = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            exclusions = {pytest, *load}
            if process.pid in exclusions or process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
                continue
            if XDIST_WORKER not in process.cmdline():
                selection.append(process)
    return selection


@contextmanager
def suspend(process: psutil.Process) -> Iterator[None]:
    """Suspend a process while the block runs. A process that a test stops during the block stays stopped."""
    try:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            if not is_stop_pending(process.pid):
                process.resume()


def is_stop_pending(pid: int) -> bool:
    """Return True if a stopped process has received SIGSTOP again. Return False if the system has no /proc.

    A process that is not stopped may not have processed the SIGSTOP of `suspend` yet.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    is_stopped = re.search(r"^State:\s*T", status, re.MULTILINE)
    pending = re.search(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(is_stopped and pending and int(pending[1], 16) >> (signal.SIGSTOP - 1) & 1)


@contextmanager
def busy_loops(count: int, limit: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run `count` busy loops while the block runs. A loop also exits with this process, or after `limit` seconds."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(limit)]))
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(arguments: Sequence[str], limit: float, generator: random.Random | None) -> Run:
    """Run pytest once. If `generator` is given, run pytest under load and suspend random processes."""
    began = time.monotonic()
    deadline = began + limit
    with tempfile.TemporaryDirectory() as folder, busy_loops(2 * _cores() if generator else 0, limit) as loops:
        outcomes = Path(folder) / "outcomes.jsonl"
        outcomes.touch()
        command = [sys.executable, "-m", "pytest", "-p", "tests.tools.pytest_plugin", *arguments]
        pytest = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TEST_OUTCOMES": str(outcomes)})
        try:
            while generator and pytest.poll() is None and time.monotonic() < deadline:
                choice = targets(pytest.pid, descendants(), {loop.pid for loop in loops})
                if choice:
                    with suspend(generator.choice(choice)):
                        wait(pytest, time.monotonic() + STOP_DURATION)
                wait(pytest, time.monotonic() + generator.uniform(0.2, 1.0))
            code = wait(pytest, deadline)
            if code is None:
                interrupt(pytest)
        finally:
            kill_descendants()
            pytest.wait()
        passed_count, failures = read_outcomes(outcomes.read_text(encoding="utf-8").splitlines())
    return Run(time.monotonic() - began, passed_count, failures, code)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def main() -> int:
    """Repeat the tests and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how often (default 5)")
    parser.add_argument("--quiet", action="store_true", help="neither load nor stopped processes")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that one run may take (default 1800)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="seed of the choices of processes")
    options, arguments = parser.parse_known_args()
    adopt_orphans()
    exit_on_sigterm()
    generator = None if options.quiet else random.Random(options.seed)
    runs: list[Run] = []
    try:
        for _ in range(options.runs):
            runs.append(run_once(arguments, options.limit, generator))
    finally:
        print(f"\n{report(runs)}\nseed {options.seed}")
    return 0 if all(run.code == 0 for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
