"""Output of commands. Tables fit a terminal and are not truncated in a pipe, and failures include their reference."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from a2a.utils.errors import InternalError, InvalidParamsError

from a2a_celery.cli.operator.requeue import RequeueResult
from a2a_celery.cli.operator.stats import Stats
from a2a_celery.cli.output import Progress, error_line, table, wrap_text
from a2a_celery.client import RemoteError
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store.admin.metrics import FleetMetrics
from a2a_celery.store.admin.usage import StoreUsage
from a2a_celery.store.webhooks.deliveries import DeliveryMetrics
from tests.support.terminal import terminal

ROWS = [("a", "short"), ("b", "x" * 40)]


def test_a_pipe_gets_complete_lines() -> None:
    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME  WHAT", "a     short", f"b     {'x' * 40}"]


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")

    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME WHAT", "a    short", f"b    {'x' * 14}…"]


TASK = "4f7f41f6-57ac-4b8e-9b35-3b5b5d2f9c59"
WEBHOOK = "9c578d94-8105-4762-8150-faa4063e2db3"
CONTEXT = "0f7ec036-c7c9-4ce0-bd1b-c83a842329f0"


def test_the_statistics_of_agents_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    name = "a-research-assistant"
    counts = {("ended", name, str(int(COMPLETED))): 1_234_567, ("lost", name, "failed"): 2}
    runs = dict.fromkeys(("queued", "blocked", "running", "delegated", "suspended"), 0)
    fleet_metrics = FleetMetrics(0, counts, runs, 0, 0, {name: 75.0})
    metrics = Stats(fleet_metrics, DeliveryMetrics(0, 0, 0, 0, 0), StoreUsage(0, 0, 0, 0, 0), {}, (name,))

    lines = list(metrics.lines(None))

    assert max(len(text) for line in lines for text in line.splitlines()) <= 80
    assert lines[0].endswith(" COMPLETED FAILED CANCELED")
    assert lines[2] == "  REJECTED 0  LOST 2"


def test_the_last_columns_are_truncated_and_the_first_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    heading = ("TASK", "AGENT", "RUN", "FOR", "WORKER", "WHY")
    cells = (TASK, "researcher", "1", "3 min 20 s", "celery@host-17.example.com", "cancel requested, still running")

    lines = list(table(heading, [cells]))

    assert lines == [
        f"{'TASK':36} AGENT      RUN FOR        WORKER   WHY",
        f"{TASK} researcher 1   3 min 20 s celery@… cancel …",
    ]
    assert max(map(len, lines)) <= 80


def test_a_terminal_omits_columns_without_a_value_before_optional_columns() -> None:
    heading = ("TASK", "STATE", "OLDEST", "CONTEXT")
    lines = [(TASK, "WORKING", "-", CONTEXT)]

    assert list(table(heading, lines, 83, ids=["TASK"], optional=["CONTEXT"])) == [
        f"{'TASK':36}  STATE    CONTEXT",
        f"{TASK}  WORKING  {CONTEXT}",
    ]
    assert list(table(heading, lines, 80, ids=["TASK"], optional=["CONTEXT"])) == [
        f"{'TASK':36}  STATE",
        f"{TASK}  WORKING",
    ]


def test_a_time_on_a_narrow_terminal_omits_the_current_date_or_year() -> None:
    now = datetime.now(UTC)
    times = [f"{now:%Y-%m-%d} 02:38:04", f"{now.year}-00-00 02:38:04", "2001-02-03 02:38:04"]
    cells = [(TASK, "COMPLETED", "researcher", time) for time in times]
    heading = ("TASK", "STATE", "AGENT", "SINCE (UTC)")

    assert [line[58:] for line in table(heading, cells, 77, ids=["TASK"], times=["SINCE (UTC)"])] == [
        "SINCE (UTC)",
        *times,
    ]
    lines = list(table(heading, cells, 76, ids=["TASK"], times=["SINCE (UTC)"]))
    assert [line[47:].split(maxsplit=1)[1] for line in lines[1:]] == [
        "02:38:04",
        "00-00 02:38:04",
        "2001-02-03 02:38:04",
    ]


def test_a_narrow_terminal_gets_columns_below_their_line_and_complete_ids() -> None:
    heading = ("TASK", "WEBHOOK", "STATE", "TRIES", "WHY")
    cells = [
        (TASK, WEBHOOK, "dead", "1", "answered 410: the receiver accepts no more events"),
        (TASK, WEBHOOK, "waiting", "-", "-"),
    ]

    assert list(table(heading, cells, 120, ids=["TASK", "WEBHOOK"], below=["WHY", "TRIES", "STATE"])) == [
        f"{'TASK':36}  {'WEBHOOK':36}  STATE    TRIES",
        f"{TASK}  {WEBHOOK}  dead     1",
        "  WHY answered 410: the receiver accepts no more events",
        f"{TASK}  {WEBHOOK}  waiting  -",
    ]
    for width in (80, 40):
        lines = list(table(heading, cells, width, ids=["TASK", "WEBHOOK"], below=["WHY", "TRIES", "STATE"]))
        assert lines[0].split() == ["TASK", "WEBHOOK"]
        assert [line.split() for line in lines[1::2]] == [[TASK, WEBHOOK]] * 2
        assert " ".join(lines[2].split()) == f"STATE dead TRIES 1 WHY {cells[0][-1]}"
        assert max(map(len, lines[2].splitlines())) <= width
        assert lines[2].startswith("  STATE")
        assert lines[4] == "  STATE waiting"


@pytest.mark.parametrize("missing", [-1, 0, 1, 20])
def test_the_ids_of_a_line_that_is_cut_are_complete(missing: int) -> None:
    ids_width = len(f"{TASK} {WEBHOOK}")

    lines = list(
        table(("TASK", "WEBHOOK", "STATE"), [(TASK, WEBHOOK, "waiting")], ids_width - missing, ids=("TASK", "WEBHOOK"))
    )

    assert lines[1].removesuffix("…") == f"{TASK} {WEBHOOK}"
    assert max(map(len, lines)) <= max(ids_width, ids_width - missing)


def test_a_narrow_terminal_gets_the_beginning_of_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "8")

    assert list(table(("NAME", "WHAT"), [("a" * 20, "b")])) == ["NAME   …", "aaaaaaa…"]


def test_a_text_is_wrapped_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrap_text("one two three", width=8) == "one two\n  three"
    assert wrap_text("one two three") == "one two three"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "9")
    assert wrap_text("one two three", "    ") == "one two\n    three"


@pytest.mark.parametrize("published", [None, True, False])
@pytest.mark.parametrize("blocked", [False, True])
def test_the_line_about_a_requeued_task_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, published: bool | None, blocked: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")

    lines = RequeueResult(TASK, CONTEXT, published, blocked).line().splitlines()

    assert lines[0].rstrip(":") == f"{TASK} → {CONTEXT}"
    assert max(map(len, lines)) <= 80
    assert len(lines) == (1 if published else 2)


class TestProgress:
    def show(self) -> None:
        with Progress("Requeuing", 2) as progress:
            progress.echo("one")
            progress.advance()
            progress.echo("two", err=True)
            progress.advance()

    def test_a_pipe_gets_only_the_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.show()

        assert capsys.readouterr() == ("one\n", "two\n")

    def test_a_terminal_gets_a_bar_and_then_the_lines(self) -> None:
        program = "from tests.unit.test_tables import TestProgress; TestProgress().show()"
        with terminal(program) as screen:
            assert screen.ends() == 0

        left_part, _, right_part = screen.screen.rpartition("100%")
        assert "Requeuing" in left_part
        assert "one" not in left_part
        assert right_part.split()[-2:] == ["one", "two"]

    def test_lines_for_a_program_are_not_delayed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        lines: list[str] = []
        monkeypatch.setattr(click, "echo", lambda line="", **_: lines.append(line))
        with Progress("Requeuing", 2) as progress:
            progress.echo("one")

            assert "one" in lines


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
