"""Where a run is kept that others are compared with, and read: a file of its figures, and the pages that show them.

Nobody writes a figure into a page: it is between two marks there, and a test says that it is what the file has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .picture import picture
from .results import Result
from .table import processor_table, table

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks" / "table.json"
PICTURE = ROOT / "docs" / "performance.svg"
BEGIN, END = "<!-- measured, by python -m benchmarks --record -->", "<!-- /measured -->"


@dataclass(frozen=True, slots=True)
class Record:
    """A whole run, and the machine it was taken on."""

    machine: str
    results: Sequence[Result]


def recorded(path: Path = RECORDED) -> Record:
    """The run that was recorded last."""
    said = json.loads(path.read_text(encoding="utf-8"))
    return Record(said["machine"], [Result.of_json(result) for result in said["results"]])


def as_json(record: Record) -> str:
    """As in a file."""
    said = {"machine": record.machine, "results": [result.as_json() for result in record.results]}
    return json.dumps(said, indent=1) + "\n"


def pages(record: Record) -> Mapping[Path, str]:
    """What is between the marks of each page."""
    on = f"One run, on {record.machine}:"
    whole = f"{on}\n\n{table(record.results)}\n\n{processor_table(record.results)}"
    return {
        ROOT / "README.md": f"{on}\n\n{table(record.results, targets_only=True)}",
        ROOT / "docs" / "performance.md": whole,
    }


def keep(record: Record) -> None:
    """Writes file, picture and pages."""
    RECORDED.write_text(as_json(record), encoding="utf-8")
    PICTURE.write_text(picture(record.results), encoding="utf-8")
    for page, body in pages(record).items():
        page.write_text(marked(page.read_text(encoding="utf-8"), body), encoding="utf-8")


def marked(text: str, body: str) -> str:
    """`text` with `body` between the marks.

    Raises:
        ValueError: `text` has no marks, or more than two.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"there must be one {BEGIN} and one {END} behind it")
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"
