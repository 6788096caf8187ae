"""Measure which lines and branches of a2a_celery the tests run, in all processes that the tests start.

    python -m tests.tools.measure_coverage                                                    # the change tier
    python -m tests.tools.measure_coverage -m "change or merge" -n 2 --dist=loadfile          # two files at a time
    python -m tests.tools.measure_coverage --table build/coverage/data --contexts tests/store

Arguments that the tool does not know are passed to pytest. Gateways, workers, pool children and watchers are measured
as well. The data of a process that is killed by SIGKILL is lost. A measured run takes about twice as long as a plain
run.

The folder `--out` (default build/coverage) receives

- ``data``: the combined data file. Its contexts are node ids: the id of the test that ran a line in pytest's process,
  or, followed by " (setup)" or " (call)", the id of the test that started the process that ran the line.
  ``coverage html --data-file=… --show-contexts`` shows them.
- ``outcomes.jsonl``: each test's outcome and duration.
- ``table.txt``: lines and branches for each package and in total, as printed.

``tests.tools.mutate`` selects tests by the first two files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import coverage

from .coverage_table import COUNTS, table
from .processes import adopt_orphans, exit_on_sigterm, kill_descendants

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "coverage"


def enter_context(test: str) -> None:
    """Set the coverage context to the name of a test, for this process and the processes that it forks."""
    running = coverage.Coverage.current()
    if running is not None:
        running.set_option("run:context", test)
        running.switch_context(test)


def measure(out: Path, arguments: list[str]) -> int:
    """Run pytest under coverage, combine the data of its processes, and return pytest's exit code."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    settings = str(ROOT / "pyproject.toml")
    env = {
        **os.environ,
        "COVERAGE_FILE": str(out / "data"),
        "COVERAGE_PROCESS_START": settings,
        "TEST_OUTCOMES": str(out / "outcomes.jsonl"),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.tools.pytest_plugin", *arguments]
    adopt_orphans()
    exit_on_sigterm()
    try:
        code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    except BaseException:
        kill_descendants()
        raise
    coverage_data = coverage.Coverage(data_file=str(out / "data"), config_file=settings, context="")
    coverage_data.combine([str(out)])
    coverage_data.save()
    return code


def summaries(data: Path, contexts: list[str]) -> dict[str, dict[str, int]]:
    """Return the counts of each file, keyed by its path.

    Args:
        data: A combined data file.
        contexts: Regular expressions that select tests, or [] for all tests.
    """
    coverage_data = coverage.Coverage(data_file=str(data), config_file=str(ROOT / "pyproject.toml"))
    coverage_data.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        coverage_data.json_report(outfile=str(path), contexts=contexts or None, ignore_errors=True)
        files: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["files"]
    return {path: {name: entry["summary"][name] for name in COUNTS} for path, entry in files.items()}


def main() -> int:
    """Run the tests and measure, or print the table of a data file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder for the results (default build/coverage); it is emptied"
    )
    parser.add_argument(
        "--table", type=Path, metavar="DATA", help="run nothing: print the table of a combined data file"
    )
    parser.add_argument(
        "--contexts", action="append", default=[], metavar="REGEX", help="count what such tests ran only"
    )
    options, arguments = parser.parse_known_args()
    if options.table:
        print(table(summaries(options.table, options.contexts)))
        return 0
    code = measure(options.out.resolve(), arguments)
    text = table(summaries(options.out / "data", options.contexts))
    (options.out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
