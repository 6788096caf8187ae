"""Table of covered lines and branches for each package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")
"""Keys of a file's counts in coverage's JSON report."""


def table(files: Mapping[str, Mapping[str, int]]) -> str:
    """Return a table of lines and branches, with a row for each package and a row for the total."""
    packages: dict[str, Counter[str]] = {}
    for path, counts in files.items():
        inner = path[path.rindex("a2a_celery/") :].split("/")[1:-1]
        packages.setdefault(inner[0] if inner else "(top level)", Counter()).update(counts)
    total: Counter[str] = sum(packages.values(), Counter())
    lines = [f"{'package':<14}{'lines':>8}{'covered':>9}{'%':>8}{'branches':>10}{'covered':>9}{'%':>8}"]
    for name, counts in [*sorted(packages.items()), ("total", total)]:
        statements, covered_lines, branches, taken_branches = (counts[key] for key in COUNTS)
        lines.append(
            f"{name:<14}{statements:>8}{covered_lines:>9}{_percent(covered_lines, statements):>8}"
            f"{branches:>10}{taken_branches:>9}{_percent(taken_branches, branches):>8}"
        )
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
