"""Output of commands. Tables fit a terminal and are not truncated in a pipe, and failures include their reference."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from a2a.utils.errors import InternalError, InvalidParamsError

from a2a_celery.cli.operator.stats import FleetReading, stats_fields, stats_lines
from a2a_celery.cli.output import Column, Table, error_line, progress_bar, table, wrap_text
from a2a_celery.client import RemoteError
from a2a_celery.features.dead_letters.command import requeued_text
from a2a_celery.features.dead_letters.requeue import RequeuedTask
from a2a_celery.features.webhooks.deliveries import DeliveryMetrics
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store.admin.metrics import FleetMetrics
from a2a_celery.store.admin.usage import StoreUsage
from tests.support.processes.terminal import terminal

ROWS = [("a", "short"), ("b", "x" * 40)]


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Function that makes stdout a terminal with a number of columns."""

    def open_terminal(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))

    return open_terminal


def test_a_pipe_gets_complete_lines() -> None:
    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME  WHAT", "a     short", f"b     {'x' * 40}"]


def test_a_terminal_gets_lines_that_fit(open_terminal: Callable[[int], None]) -> None:
    open_terminal(20)
    text = "one two three four five"

    assert list(table(("NAME", "WHAT"), [("a", "short"), ("b", text)])) == [
        *("NAME", "a", "  WHAT short", "b", "  WHAT one two three\n    four five")
    ]


TASK = "4f7f41f6-57ac-4b8e-9b35-3b5b5d2f9c59"
WEBHOOK = "9c578d94-8105-4762-8150-faa4063e2db3"
CONTEXT = "0f7ec036-c7c9-4ce0-bd1b-c83a842329f0"


def test_the_statistics_of_agents_fit_80_columns(open_terminal: Callable[[int], None]) -> None:
    open_terminal(80)
    name = "a-research-assistant"
    counts = {("ended", name, str(int(COMPLETED))): 1_234_567, ("lost", name, "failed"): 2}
    runs = dict.fromkeys(("queued", "blocked", "running", "delegated", "suspended"), 0)
    fleet_metrics = FleetMetrics(0, counts, runs, 0, 0, {name: 75.0})
    reading = FleetReading(fleet_metrics, DeliveryMetrics(0, 0, 0, 0, 0))

    lines = list(stats_lines(stats_fields(reading, StoreUsage(0, 0, 0, 0, 0), {}, [name]), None))

    assert max(len(text) for line in lines for text in line.splitlines()) <= 80
    assert lines[0].endswith(" COMPLETED FAILED CANCELED")
    assert lines[2] == "  REJECTED 0  LOST 2"


def test_the_last_columns_are_below_their_line_and_no_cell_is_truncated(open_terminal: Callable[[int], None]) -> None:
    open_terminal(80)
    heading = ("TASK", "AGENT", "RUN", "FOR", "WORKER", "WHY")
    cells = (TASK, "researcher", "1", "3 min 20 s", "celery@host-17.example.com", "cancel requested, still running")

    lines = list(table(heading, [cells]))

    assert lines == [
        f"{'TASK':36}  AGENT       RUN  FOR",
        f"{TASK}  researcher  1    3 min 20 s",
        "  WORKER celery@host-17.example.com  WHY cancel requested, still running",
    ]
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_omits_optional_columns() -> None:
    heading = ("TASK", "STATE", "REASON", "CONTEXT")
    lines = [(TASK, "FAILED", "timeout", CONTEXT)]

    assert list(table(heading, lines, 90, optional=["CONTEXT"])) == [
        f"{'TASK':36} STATE  REASON  CONTEXT",
        f"{TASK} FAILED timeout {CONTEXT}",
    ]
    assert list(table(heading, lines, 80, optional=["CONTEXT"])) == [
        f"{'TASK':36}  STATE   REASON",
        f"{TASK}  FAILED  timeout",
    ]


def test_a_time_on_a_narrow_terminal_omits_the_current_date_or_year() -> None:
    now = datetime.now(UTC)
    heading, times = ("TASK", "STATE", "AGENT", "SINCE (UTC)"), ["SINCE (UTC)"]
    new, old = [
        (TASK, "COMPLETED", "researcher", f"{date} 02:38:04") for date in (f"{now:%Y-%m-%d}", f"{now.year}-00-00")
    ]

    assert [line[58:] for line in table(heading, [new, old], 77, times=times)] == ["SINCE (UTC)", new[3], old[3]]
    assert [line[61:] for line in table(heading, [new, old], 76, times=times)] == [
        *("SINCE (UTC)", "02:38:04", "00-00 02:38:04")
    ]


def test_a_table_prints_each_value_to_readers_scripts_or_both(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    items = Table[str](
        [
            Column("NAME", "name", str),
            Column("SIZE", "size", len, lambda name: f"{len(name)} characters"),
            Column("SINCE (UTC)", "since", lambda _: now),
            Column("", "begun", lambda _: now),
            Column("NOTE", "", lambda _: ""),
            Column("EMPTY", "empty", lambda _: None),
        ],
        sparse=["NOTE"],
    )

    assert list(items.lines(["report"], 35)) == [
        "NAME    SIZE          SINCE (UTC)",
        f"report  6 characters  {now:%H:%M:%S}",
    ]
    time = now.isoformat()
    assert items.fields("report") == {"name": "report", "size": 6, "since": time, "begun": time, "empty": None}
    items.print(["a", "b"], False, limit=1)
    assert capsys.readouterr().out.splitlines()[-1] == "… more tasks exist: raise --limit"
    items.print(["a", "b"], True, limit=1)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_time_of_another_year_is_complete() -> None:
    cells = (TASK, "COMPLETED", "researcher", "2001-02-03 02:38:04")

    assert list(table(("TASK", "STATE", "AGENT", "SINCE (UTC)"), [cells], 76, times=["SINCE (UTC)"])) == [
        f"{'TASK':36}  STATE      AGENT",
        f"{TASK}  COMPLETED  researcher",
        "  SINCE (UTC) 2001-02-03 02:38:04",
    ]


def test_a_narrow_terminal_gets_columns_below_their_line_and_complete_ids() -> None:
    heading = ("TASK", "WEBHOOK", "STATE", "TRIES", "WHY")
    cells = [
        (TASK, WEBHOOK, "dead", "1", "answered 410: the receiver accepts no more events"),
        (TASK, WEBHOOK, "waiting", "-", "-"),
    ]

    assert list(table(heading, cells, 120, fixed=["WEBHOOK"])) == [
        f"{'TASK':36}  {'WEBHOOK':36}  STATE    TRIES",
        f"{TASK}  {WEBHOOK}  dead     1",
        "  WHY answered 410: the receiver accepts no more events",
        f"{TASK}  {WEBHOOK}  waiting  -",
    ]
    for width in (80, 40):
        lines = list(table(heading, cells, width, fixed=["WEBHOOK"]))
        assert lines[0].split() == ["TASK", "WEBHOOK"]
        assert [line.split() for line in lines[1::2]] == [[TASK, WEBHOOK]] * 2
        assert " ".join(lines[2].split()) == f"STATE dead TRIES 1 WHY {cells[0][-1]}"
        assert max(map(len, lines[2].splitlines())) <= width
        assert lines[2].startswith("  STATE")
        assert lines[4] == "  STATE waiting"


@pytest.mark.parametrize("missing", [-1, 0, 1, 20])
def test_ids_are_complete_on_any_terminal(missing: int) -> None:
    ids_width = len(f"{TASK} {WEBHOOK}")
    cells = [(TASK, WEBHOOK, "waiting")]

    lines = list(table(("TASK", "WEBHOOK", "STATE"), cells, ids_width - missing, fixed=["WEBHOOK"]))

    assert [line.split() for line in lines[1:]] == [[TASK, WEBHOOK], ["STATE", "waiting"]]


def test_a_text_is_wrapped_on_a_terminal_only(open_terminal: Callable[[int], None]) -> None:
    assert wrap_text("one two three", width=8) == "one two\n  three"
    assert wrap_text("one two three") == "one two three"
    open_terminal(9)
    assert wrap_text("one two three", "    ") == "one two\n    three"


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (RequeuedTask(TASK, CONTEXT), 2),
        (RequeuedTask(TASK, CONTEXT, "agent", is_published=True), 1),
        (RequeuedTask(TASK, CONTEXT, "agent"), 2),
        (RequeuedTask(TASK, CONTEXT, "agent", is_blocked=True), 2),
    ],
    ids=["before", "published", "unavailable broker", "blocked"],
)
def test_the_line_about_a_requeued_task_fits_80_columns(
    open_terminal: Callable[[int], None], answer: RequeuedTask, count: int
) -> None:
    open_terminal(80)

    lines = requeued_text(answer).splitlines()

    assert lines[0].rstrip(":") == f"{TASK} → {CONTEXT}"
    assert max(map(len, lines)) <= 80
    assert len(lines) == count


class TestProgressBar:
    def show(self) -> None:
        with progress_bar("Cancelling", 2) as advance:
            advance(1)
            advance(1)
        click.echo("2 tasks: 2 canceled")

    def test_a_pipe_gets_no_bar(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.show()

        assert capsys.readouterr() == ("2 tasks: 2 canceled\n", "")

    def test_a_terminal_gets_a_bar(self) -> None:
        program = "from tests.unit.test_tables import TestProgressBar; TestProgressBar().show()"
        with terminal(program) as screen:
            assert screen.ends() == 0

        left_part, _, right_part = screen.screen.rpartition("100%")
        assert "Cancelling" in left_part
        assert "2 tasks: 2 canceled" in right_part


def test_an_error_shows_its_reference_and_each_wrong_field_once() -> None:
    error_body = {
        "errors": [{"field": "id", "message": "Field is required."}, {"field": "tenant", "message": "Unknown."}]
    }

    assert error_line(InternalError("Internal error", {"reference": "0123"})) == "Internal error [reference 0123]"
    assert error_line(InvalidParamsError("id: wrong", error_body)) == "id: wrong; tenant: Unknown."
    assert error_line(InvalidParamsError("two\nlines")) == "two lines"
    assert error_line(RemoteError("two\nlines \x1b[2J")) == "two lines \N{REPLACEMENT CHARACTER}[2J"


@pytest.mark.parametrize(
    "data",
    [
        *([1], "text", {"errors": None}, {"errors": 5}, {"errors": "text"}, {"errors": {"field": "id"}}),
        *({"errors": [1, None, "text", [], {}]}, {"errors": [{"field": 1, "message": {}}]}),
        *({"errors": [{"field": "id"}]}, {"errors": [[{"field": "id", "message": "m"}]]}, {"reference": [1]}),
    ],
    ids=json.dumps,
)
def test_malformed_data_of_an_error_is_not_shown(data: Any) -> None:
    assert error_line(InvalidParamsError("wrong", data)) == "wrong"


@pytest.mark.parametrize("message", [["wrong"], {"text": "wrong"}, 5, True])
def test_a_message_that_is_not_a_text_is_shown_as_one(message: Any) -> None:
    assert error_line(InvalidParamsError(message)) == str(message)
