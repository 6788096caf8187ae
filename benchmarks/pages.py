"""Recorded run: the file with its results, and the tables between two marks in the documentation.

A test compares the tables with the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .picture import picture
from .results import Result
from .table import processor_table, summary_table, table

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks" / "table.json"
PICTURE = ROOT / "docs" / "performance.svg"
SUMMARY = ("echo", "echo-alone", "streams", "get-task-of-many", "cancel")
"""Benchmarks in the README. This project is better than the SDK's server in some of them, and worse in others."""
BEGIN, END = "<!-- measured, by python -m benchmarks --record -->", "<!-- /measured -->"


@dataclass(frozen=True, slots=True)
class Record:
    """Results of a complete run, and the machine on which the run was measured."""

    machine: str
    results: Sequence[Result]


def recorded(path: Path = RECORDED) -> Record:
    """Return the recorded run."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Record(fields["machine"], [Result.of_json(result) for result in fields["results"]])


def as_json(record: Record) -> str:
    """Return the text of the record's file."""
    fields = {"machine": record.machine, "results": [result.as_json() for result in record.results]}
    return json.dumps(fields, indent=1) + "\n"


def pages(record: Record) -> Mapping[Path, str]:
    """Return the text that belongs between the marks of each page."""
    on = f"One run, on {record.machine}:"
    summary = [result for result in record.results if result.name in SUMMARY]
    whole = f"{on}\n\n{table(record.results)}\n\n{processor_table(record.results)}"
    return {
        ROOT / "README.md": f"{on}\n\n{summary_table(summary)}",
        ROOT / "docs" / "performance.md": whole,
    }


def keep(record: Record) -> None:
    """Write the file, the picture and the pages."""
    RECORDED.write_text(as_json(record), encoding="utf-8")
    PICTURE.write_text(picture(record.results), encoding="utf-8")
    for page, body in pages(record).items():
        page.write_text(marked(page.read_text(encoding="utf-8"), body), encoding="utf-8")


def marked(text: str, body: str) -> str:
    """Return `text` with `body` between the marks.

    Raises:
        ValueError: `text` does not contain exactly one begin mark and, after it, one end mark.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"there must be one {BEGIN} and one {END} after it")
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"
