"""Results as padded Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .results import PROJECT, Result, Target

HEAD = ("measure", "ratio", "rounds from … to", "target", "", "a2a-celery", "other")
SUMMARY_HEAD = ("measure", "a2a-celery", "others")
PROCESSOR_HEAD = ("measure", "server", "milliseconds of CPU time per request")


def table(results: Iterable[Result]) -> str:
    """Return a table with a row for each ratio and for each target of this project's median."""
    return _padded([HEAD, *(row for result in results for row in _rows(result))])


def summary_table(results: Iterable[Result]) -> str:
    """Return a table with one row for each result: this project's median and the medians of the peers."""
    rows = [
        (
            result.what,
            f"{_number(result.median())} {result.unit}",
            ", ".join(f"{peer} {_number(result.median(peer))}" for peer in result.peers),
        )
        for result in results
    ]
    return _padded([SUMMARY_HEAD, *rows])


def processor_table(results: Iterable[Result]) -> str:
    """Return a table of each process's CPU time per request, or "" if no CPU time was measured."""
    rows = [
        (result.name, server, ", ".join(f"{process} {spent:.2f}" for process, spent in by_process.items()))
        for result in results
        for server, by_process in result.processor.items()
        if by_process
    ]
    return _padded([PROCESSOR_HEAD, *rows]) if rows else ""


def _rows(result: Result) -> list[tuple[str, ...]]:
    rows = []
    own = result.target(None)
    if own or not result.peers:
        low, high = min(result.figures[PROJECT]), max(result.figures[PROJECT])
        rows.append(("", f"{_number(low)} to {_number(high)}", *_verdict(own, result.median()), ""))
    for peer in result.peers:
        ratio, target = result.ratio(peer), result.target(peer)
        spread = f"{_number(ratio.low)} to {_number(ratio.high)}"
        beside = f"{peer}: {_number(result.median(peer))}"
        rows.append((f"{_number(ratio.median)} × {peer}", spread, *_verdict(target, ratio.median), beside))
    title, value = f"{result.name}: {result.what}", f"{_number(result.median())} {result.unit}"
    return [
        (title if number == 0 else "", *row[:-1], value if number == 0 else "", row[-1])
        for number, row in enumerate(rows)
    ]


def _verdict(target: Target | None, value: float) -> tuple[str, str]:
    return ("", "") if target is None else (str(target), "met" if target.is_met(value) else "missed")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _padded(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    lines.insert(1, f"| {' | '.join('-' * max(width, 3) for width in widths)} |")
    return "\n".join(lines)
