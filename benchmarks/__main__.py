"""Compare a2a_celery with a minimal server and with other servers, in one run on one machine (docs/performance.md).

    pip install -e '.[benchmarks]' && python -m benchmarks

Each round measures all servers in direct succession, so that other load on the machine affects all servers alike.
The results are ratios, because absolute numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from tests.support.processes.fork_server import FRESH_PROCESSES

from .collapse import collapsed
from .environment import Environment, Options, has_postgres
from .measures import MEASURES, SHORT
from .measures.stored_tasks import FEW
from .pages import Record, as_json, keep, recorded
from .picture import picture
from .results import Result
from .table import processor_table, table

MILLION = 1_000_000

FAST = ("uvloop", "httptools", "hiredis")
"""Packages of the extra ``fast``. If they are installed, all compared servers use them."""


def arguments(command_line: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    options = Options()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=positive, help=f"rounds per benchmark: {options.rounds}, or 3 with --short")
    parser.add_argument("--only", nargs="+", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--short", action="store_true", help=f"{', '.join(SHORT)}; fails on collapse, see table.json")
    parser.add_argument("--tasks", type=positive, default=options.tasks, help="tasks in the store: %(default)s")
    parser.add_argument("--million", action="store_const", dest="tasks", const=MILLION, help="--tasks 1000000")
    parser.add_argument("--waiting", type=positive, default=options.waiting, help="waiting agents: %(default)s")
    parser.add_argument("--pool", default=options.pool, help="worker pool of the waiting agents: %(default)s")
    parser.add_argument("--no-cluster", action="store_true", help="leave out the SDK's cluster mode on PostgreSQL")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves into this SVG file")
    parser.add_argument("--record", action="store_true", help="store this run in table.json and in the documentation")
    parsed = parser.parse_args(command_line)
    if parsed.tasks <= FEW:
        parser.error(f"--tasks {parsed.tasks}: must be more than {FEW}, the number that it is compared with")
    if parsed.record and (parsed.only or parsed.short):
        parser.error("--record needs all measures: leave out --only and --short")
    return parsed


def positive(text: str) -> int:
    """Parse a positive integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be 1 or more")
    return number


def machine() -> str:
    """Return a line that describes this machine."""
    model = platform.processor() or platform.machine()
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    fast = [name for name in FAST if find_spec(name)]
    on_all = f"with {', '.join(fast)} on all sides" if fast else f"without {', '.join(FAST)}"
    return f"{os.cpu_count()} cores, {model}, {python}, {on_all}, load {os.getloadavg()[0]:.1f} before"


def measured(names: Sequence[str], options: Options) -> tuple[list[Result], list[str]]:
    """Run the benchmarks. Print the name of each benchmark to stderr before it starts, and its results afterwards.

    Returns:
        The results, and an error line for each failure.
    """
    os.environ["OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"] = "false"  # for every server
    results: list[Result] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        environment = Environment(Path(folder), stack, options)
        for number, name in enumerate(names, start=1):
            print(f"[{number} of {len(names)}] {name} …", file=sys.stderr, flush=True)
            began = perf_counter()
            try:
                measured_results = MEASURES[name](environment)
            except Exception as e:
                traceback.print_exc()
                failed.append(f"{name} could not be measured: {type(e).__name__}")
                continue
            print(f"{table(measured_results)}\n({name}: {perf_counter() - began:.0f} s)\n", flush=True)
            results += measured_results
    return results, failed


def main(command_line: Sequence[str] | None = None) -> int:
    parsed = arguments(command_line)
    os.environ[FRESH_PROCESSES] = "1"  # as for users; forks would share memory and uncollected objects
    options = Options(
        rounds=parsed.rounds or (3 if parsed.short else Options().rounds),
        tasks=parsed.tasks,
        waiting=parsed.waiting,
        pool=parsed.pool,
        cluster=has_postgres() and not parsed.short and not parsed.no_cluster,
    )
    machine_text = machine()
    results, failed = measured(parsed.only or (SHORT if parsed.short else list(MEASURES)), options)
    print(f"{machine_text}; now {os.getloadavg()[0]:.1f}\n\n{table(results)}\n\n{processor_table(results)}")
    record = Record(machine_text, results)
    if parsed.json:
        parsed.json.write_text(as_json(record), encoding="utf-8")
    if parsed.picture:
        parsed.picture.write_text(picture(results), encoding="utf-8")
    if parsed.short:
        failed += collapsed(results, recorded().results)
    if parsed.record and not failed:
        keep(record)
    for line in failed:
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped too
    sys.exit(main())
