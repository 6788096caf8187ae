"""Mutation testing with a sample of mutants. The tool runs the tests that reach each mutant and lists survivors.

    python -m tests.tools.measure_coverage -n 2 --dist=loadfile              # once: records which test runs which line
    python -m tests.tools.mutate --count 200 --seed 1 --tier change          # by default the packages in PACKAGES
    python -m tests.tools.mutate --count 200 --seed 1 --tier merge --resume  # tests the survivors in the next tier
    python -m tests.tools.mutate --report
    python -m tests.tools.mutate --tier change --only store/scripts/log/append.lua:12:7:comparison

The sample contains the same number of mutants from each package. Within a package, all mutants have the same
probability. The tool writes each mutant into a git worktree of HEAD in a temporary folder, so that forked processes and
subprocesses see it. The working tree stays unchanged. Changes that are not committed are not tested.

Coverage data of the same commit selects the tests: the tests that ran the mutated line in pytest's process, and all
tests of each file with a test that started a process that ran the line. A Lua script is reached by the tests that ran a
Python line that calls the script. For Lua scripts, tests/store and tests/features run first. Then the fastest files run
first. The expected duration is at most `--cap` seconds. A mutant that no test of the tier reaches is "uncovered".

A failed test is repeated once without the mutant. A test that fails again is excluded for the rest of the run. Each
result is appended to `--results` with the command. If the tests of a mutant exceed `--timeout`, or pytest fails outside
of a test, the mutant has no result and is in no column of the report. A test that hangs fails at its own timeout.
``--resume`` continues an interrupted run and repeats mutants without a result. Two processes share one sample with
``--shard 1/2 --resume`` and ``--shard 2/2 --resume``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .mutants import PACKAGE, Mutant, mutants_in, sample
from .processes import adopt_orphans, exit_on_sigterm, interrupt, kill_descendants, wait
from .selection import Selector, cap_tests

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("store/scripts", "features", "dispatch", "execution", "watcher", "push")
TIERS = {"change": "change", "merge": "change or merge", "full": "change or merge or nightly"}
"""Marker expression of each tier. Each tier includes the previous ones."""

Record = dict[str, Any]


class Scratch:
    """Git worktree of HEAD in which mutants are written and tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        self._env["PYTHONPATH"] = str(folder)  # precedes the editable install of the working tree

    def command(self, tier: str, *arguments: str) -> list[str]:
        """Return the command that runs pytest for a tier."""
        return [sys.executable, "-m", "pytest", "-m", TIERS[tier], "-q", "-p", "no:cacheprovider", *arguments]

    def collect(self, tier: str) -> set[str]:
        """Return the tests of a tier."""
        code, listing = self.run(self.command(tier, "--collect-only"), 600)
        if code != 0:
            sys.exit(f"{listing[-3000:]}\npytest cannot collect the tests: exit code {code}")
        return {line for line in listing.splitlines() if line.startswith("tests/") and "::" in line}

    def run(self, command: list[str], limit: float) -> tuple[int | None, str]:
        """Run a command and return the exit code and the output. The code is None if the command exceeds `limit`
        seconds."""
        with tempfile.TemporaryFile() as output:
            popen = subprocess.Popen(command, cwd=self.folder, env=self._env, stdout=output, stderr=output)
            try:
                code = wait(popen, time.monotonic() + limit)
                if code is None:
                    interrupt(popen)
            finally:
                kill_descendants()
            popen.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")

    @contextmanager
    def write_mutant(self, mutant: Mutant) -> Iterator[None]:
        """Write the mutated file, and restore the file after the block."""
        path = self.folder / mutant.path
        bytecode = Path(importlib.util.cache_from_source(str(path)))
        bytecode.unlink(missing_ok=True)
        path.write_text(mutant.edit.apply(mutant.source), encoding="utf-8")
        try:
            yield
        finally:
            bytecode.unlink(missing_ok=True)
            path.write_text(mutant.source, encoding="utf-8")


@contextmanager
def scratch() -> Iterator[Scratch]:
    """Create a worktree of HEAD, and remove the worktree after the block."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as parent:
        folder = Path(parent) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(folder), "HEAD"], check=True)
        try:
            yield Scratch(folder)
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=False)


class Sampler:
    """Runner of the tests for each mutant."""

    def __init__(self, tree: Scratch, selector: Selector, limits: argparse.Namespace) -> None:
        self._tree = tree
        self._selector = selector
        self._limits = limits
        self._sound: set[str] = set()
        self._unsound: set[str] = set()

    def judge(self, mutant: Mutant, exclusions: set[str]) -> Record:
        """Run the tests for a mutant and return the record. `exclusions` are the tests that have passed with the mutant
        before."""
        line_before, line_after = mutant.edit.lines(mutant.source)
        record: Record = {"id": mutant.id, "package": mutant.package, "operator": mutant.edit.operator}
        record |= {"before": line_before, "after": line_after, "tier": self._limits.tier, "status": "uncovered"}
        began = time.monotonic()
        while True:
            reaching = self._selector.select(mutant, exclusions | self._unsound)
            tests = cap_tests(reaching, self._selector.seconds, self._limits.cap)
            record |= {"tests": len(tests), "reaching": len(reaching)}
            if not tests:
                return record
            command = self._tree.command(self._limits.tier, "-x", *tests)
            with self._tree.write_mutant(mutant):
                code, output = self._tree.run(command, self._limits.timeout)
            if self._limits.only:
                print(output)
            killer = failed_test(output)
            if killer not in tests or self._is_sound(killer):
                break
        status = {0: "survived", None: "timeout"}.get(code, "killed" if killer else f"error {code}")
        return record | {
            "status": status,
            "killer": killer,
            "seconds": round(time.monotonic() - began, 1),
            "command": shlex.join(command),
        }

    def _is_sound(self, test: str) -> bool:
        """Return True if the test passes without a mutant."""
        if test not in self._sound | self._unsound:
            code, _ = self._tree.run(self._tree.command(self._limits.tier, test), self._limits.timeout)
            (self._sound if code == 0 else self._unsound).add(test)
        return test not in self._unsound


def failed_test(output: str) -> str | None:
    """Return the failed test, or the file that could not be imported, from pytest's output. Return None if nothing
    failed."""
    match = re.search(r"^(?:FAILED|ERROR) (tests/\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE)
    conftest = re.search(r"^ImportError while loading conftest '.*/(tests/.*)'", output, re.MULTILINE)
    return match[1] if match else conftest[1] if conftest else None


def status_in(tier: str, records: Iterable[Record]) -> str | None:
    """Return the status of one mutant in a tier. A mutant that a smaller tier kills counts as killed.

    Returns:
        "killed", "survived" or "uncovered", or None if the mutant has none of these statuses in the tier.
    """
    names = list(TIERS)
    statuses = {record["tier"]: record["status"] for record in records}
    if any(statuses.get(name) == "killed" for name in names[: names.index(tier) + 1]):
        return "killed"
    return statuses[tier] if statuses.get(tier) in {"survived", "uncovered"} else None


def by_mutant(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by the id of their mutant."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record["id"]].append(record)
    return dict(groups)


def report(records: Sequence[Record]) -> str:
    """Return a table for each package and tier, and the mutants that survived."""
    lines = [f"{'tier':<8}{'package':<16}{'mutants':>8}{'killed':>8}{'survived':>10}{'uncovered':>11}{'killed %':>10}"]
    listing: list[str] = []
    for tier in (name for name in TIERS if any(record["tier"] == name for record in records)):
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for name, group in by_mutant(records).items():
            status, newest = status_in(tier, group), {record["tier"]: record for record in group}.get(tier)
            if status is not None:
                rows[group[0]["package"]][status] += 1
            if status != "killed" and newest is not None:
                listing.append(f"\n{tier} {name} {newest['status']}, {newest['tests']} of {newest['reaching']} tests")
                listing += [f"  - {newest['before']}", f"  + {newest['after']}"]
        for package, counts in [*sorted(rows.items()), ("total", sum(rows.values(), Counter()))]:
            kills, total = counts["killed"], counts.total()
            row = f"{tier:<8}{package:<16}{total:>8}{kills:>8}{counts['survived']:>10}{counts['uncovered']:>11}"
            lines.append(f"{row}{100 * kills / max(total, 1):>10.1f}")
    return "\n".join([*lines, *listing])


def read_results(path: Path) -> list[Record]:
    """Return the records of a results file, or [] if the file is missing."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants in the sample (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="repeats a sample (default 1)")
    parser.add_argument("--files", nargs="+", default=PACKAGES, help=f"folders or files below {PACKAGE}")
    parser.add_argument(
        "--tier", choices=TIERS, default="change", help="which tests may notice a mutant (default change)"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "coverage", help="folder of measure_coverage")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutation.jsonl", help="file of JSON lines")
    parser.add_argument("--resume", action="store_true", help="add to the results; skip mutants that have one")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="judge every Nth mutant, from the Ith on")
    parser.add_argument("--cap", type=float, default=60, help="expected seconds of the tests of a mutant (default 60)")
    parser.add_argument(
        "--timeout", type=float, default=300, help="maximum seconds of the tests of a mutant (default 300)"
    )
    parser.add_argument("--only", metavar="ID", help="run one mutant, show what pytest prints, record nothing")
    parser.add_argument("--report", action="store_true", help="print the results")
    return parser.parse_args()


def main() -> int:
    """Run the sample or one mutant, or print the report."""
    options = _options()
    if options.report:
        print(report(read_results(options.results)))
        return 0
    if options.results.exists() and not (options.resume or options.only):
        sys.exit(f"{options.results} exists: continue it with --resume, or name another file with --results")
    adopt_orphans()
    exit_on_sigterm()
    with scratch() as tree:
        if options.only:
            mutants_by_file = mutants_in(tree.folder, [options.only.partition(":")[0]])
            mutants = [
                mutant for mutants in mutants_by_file.values() for mutant in mutants if mutant.id == options.only
            ]
            if not mutants:
                sys.exit(f"no mutant {options.only}: its file may have changed")
        else:
            index, _, shards = options.shard.partition("/")
            mutants = sample(mutants_in(tree.folder, options.files), options.count, options.seed)
            mutants = mutants[int(index) - 1 :: int(shards)]
        _judge(mutants, tree, options)
    return 0


def _judge(mutants: Sequence[Mutant], tree: Scratch, options: argparse.Namespace) -> None:
    earlier_results = {} if options.only else by_mutant(read_results(options.results))
    tests = tree.collect(options.tier)
    narrower = list(TIERS)[: list(TIERS).index(options.tier)]
    narrower_tests = {tier: tree.collect(tier) for tier in narrower if earlier_results}
    sampler = Sampler(tree, Selector(options.data, tests), options)
    print(f"{len(mutants)} mutants, {len(tests)} tests in the tier", flush=True)
    for mutant in mutants:
        records = earlier_results.get(mutant.id, [])
        if status_in(options.tier, records) is not None:
            continue
        complete_tiers = {record["tier"] for record in records if record["tests"] == record["reaching"]}
        record = sampler.judge(
            mutant, set().union(*(narrower_tests[tier] for tier in narrower if tier in complete_tiers))
        )
        print(f"{record['status']:<10}{mutant.id}  {record['before']}  →  {record['after']}", flush=True)
        if not options.only:
            options.results.parent.mkdir(parents=True, exist_ok=True)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
