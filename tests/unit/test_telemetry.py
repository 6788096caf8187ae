"""Processes without telemetry, fields of JSON log lines, and traces that a client sends."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from opentelemetry.sdk.trace import TracerProvider

from a2a_celery.dispatch import RunOptions
from a2a_celery.errors import ConfigError
from a2a_celery.execution.events.run_telemetry import report_end
from a2a_celery.lifecycle import Completed, Outcome, Paused, Suspended
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import AUTH_REQUIRED, INPUT_REQUIRED
from a2a_celery.settings import Settings
from a2a_celery.telemetry.logs import JsonFormatter, TextFormatter, about
from a2a_celery.telemetry.names import Action
from a2a_celery.telemetry.spans import Spans
from a2a_celery.telemetry.tracing import trace_headers, tracing

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

OFF = """
import importlib.abc, importlib.util, os, sys, traceback

PACKAGE = os.path.join(os.path.dirname(importlib.util.find_spec("a2a_celery").origin), "")

class Watch(importlib.abc.MetaPathFinder):
    ours = []
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            importer = next((f for f in reversed(traceback.extract_stack()[:-1])
                             if "importlib" not in f.filename), None)
            if importer is not None and importer.filename.startswith(PACKAGE):
                self.ours.append(f"{name} by {importer.filename}")
            if MISSING:
                raise ImportError(f"no {name} here")
        return None

MISSING = sys.argv[1] == "missing"
sys.meta_path.insert(0, Watch())
import a2a_celery.app, a2a_celery.cli.commands, a2a_celery.execution.events.run_telemetry
import a2a_celery.features.webhooks.instrumented_post
from a2a_celery.telemetry.tracing import current_span_context, trace_to_keep, tracing
assert tracing() is None
assert trace_to_keep({}) == {}
with current_span_context():
    pass
assert Watch.ours == [], Watch.ours
assert "a2a_celery.telemetry.spans" not in sys.modules
assert MISSING != ("opentelemetry.trace" in sys.modules)  # the SDK looks for it itself
"""


@pytest.mark.parametrize("package", ["missing", pytest.param("installed", marks=pytest.mark.merge)])
def test_without_tracing_opentelemetry_is_not_imported(package: str) -> None:
    """A missing package shows each import of this package. An installed one hides imports that the SDK made before."""
    process = subprocess.run([sys.executable, "-c", OFF, package], capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr


def test_tracing_is_off_in_this_process() -> None:
    assert tracing() is None


def line(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of the JSON log line for a record."""
    text = JsonFormatter().format(record)
    assert "\n" not in text
    fields: dict[str, object] = json.loads(text)
    return fields


def test_text_of_a_client_is_escaped_in_log_lines() -> None:
    text = TextFormatter().format(record("Request Error (ID: %s)", "1\n2026 WARNING a2a: forged\x1b[2J\x9b"))

    assert text.endswith("Request Error (ID: 1\\x0a2026 WARNING a2a: forged\\x1b[2J\\x9b)")


def test_a_traceback_has_its_own_lines() -> None:
    try:
        raise ValueError("some")
    except ValueError:
        failure = record("failed", exc_info=sys.exc_info())

    assert "failed\n  Traceback" in TextFormatter().format(failure)


def test_text_of_a_client_in_an_exception_forges_no_line() -> None:
    try:
        raise ValueError("no city 1\n2026-11-25 12:00:00,000 WARNING a2a: forged\x1b[2J\r2026 WARNING a2a: forged")
    except ValueError:
        failure = record("failed", exc_info=sys.exc_info())

    first, *others = TextFormatter().format(failure).split("\n")

    assert first.endswith("failed")
    assert all(line.startswith("  ") for line in others)
    assert not {"\x1b", "\r"} & set("".join(others))


def record(message: str, *args: object, **attributes: object) -> logging.LogRecord:
    log_record = logging.LogRecord("a2a_celery.x", logging.INFO, "x.py", 1, message, args, None)
    vars(log_record).update(attributes)
    return log_record


def test_a_log_line_has_its_action_and_all_ids_of_the_run() -> None:
    fields = line(record("run %s ended", "t.a.2", **about(Action.RUN_ENDED, "t.a.2", agent="echo", seconds=None)))

    assert fields.pop("time")
    assert fields.pop("process")
    assert fields == {
        "level": "INFO",
        "logger": "a2a_celery.x",
        "message": "run t.a.2 ended",
        "action": "run.ended",
        "celery_id": "t.a.2",
        "task": "t.a",
        "run": 2,
        "agent": "echo",
    }


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Suspended("", "approval"), "suspended after 0.027 s: waits for the signal 'approval'"),
        (
            Suspended("2030-01-01T08:00:00+02:00", "approval"),
            "suspended after 0.027 s: waits for the signal 'approval' until 2030-01-01 06:00:00 UTC",
        ),
        (Suspended("2030-01-01T08:00:00.5+00:00"), "suspended after 0.027 s: waits until 2030-01-01 08:00:00 UTC"),
        (Suspended("", "child/t-2"), "suspended after 0.027 s: waits for the child task t-2"),
        (Paused(INPUT_REQUIRED), "paused after 0.027 s: asks for input"),
        (Paused(AUTH_REQUIRED), "paused after 0.027 s: asks for an authorization"),
        (Completed(), "completed after 0.027 s"),
    ],
    ids=str,
)
def test_the_line_about_the_end_of_a_run_names_what_the_task_waits_for(
    outcome: Outcome, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        report_end(outcome, RunRef("t", 1), "payment", 0.0271)

    assert caplog.messages == [f"run t.1 of payment: {end}"]


def test_a_log_line_of_celery_has_the_ids_too() -> None:
    fields = line(record("Task %s received", "a2a.echo", data={"id": "t.1", "name": "a2a.echo"}))

    assert (fields["celery_id"], fields["task"], fields["run"]) == ("t.1", "t", 1)
    assert "action" not in fields


@pytest.mark.parametrize("data", [{"id": 7}, {}, "text", None])
def test_a_log_line_about_no_run_has_no_ids(data: object) -> None:
    assert not {"celery_id", "task", "run", "action"} & line(record("hello", data=data)).keys()


def test_an_exception_is_one_field_of_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        fields = line(record("it broke", exc_info=sys.exc_info()))

    assert "ValueError: two\nlines" in str(fields["exception"])


def test_the_format_is_one_of_two() -> None:
    assert Settings(store_url="redis://x", log_format="json").log_format == "json"
    with pytest.raises(ConfigError, match="a2a_log_format = 'xml': must be text or json"):
        Settings(store_url="redis://x", log_format="xml")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, {}),
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a=1"}, {"traceparent": PARENT, "tracestate": "a=1"}),
        ({"traceparent": PARENT, "tracestate": "x" * 513}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "baggage": "user=ann"}, {"traceparent": PARENT}),
        ({"tracestate": "a=1"}, {}),
        ({"traceparent": PARENT.upper()}, {}),
        ({"traceparent": "00-" + "0" * 32 + "-00f067aa0ba902b7-01"}, {}),
        ({"traceparent": PARENT[:-3] + "-01-more"}, {}),
        ({"traceparent": PARENT + "\n"}, {}),
        ({"traceparent": "nonsense"}, {}),
    ],
)
def test_a_valid_trace_of_a_client_is_carried(headers: dict[str, str], expected: dict[str, str]) -> None:
    assert trace_headers(headers) == expected


WORKER = """
from celery import Celery
from celery.utils.log import get_task_logger
from billiard.util import get_logger
from a2a_celery import A2A

app = Celery("app", broker="memory://")
app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_log_format="json")
a2a = A2A(app)
app.set_current()
app.log.setup(loglevel="INFO")
for logger in (get_task_logger("app"), get_logger()):
    logger.error("two\\nlines")
"""


def test_each_log_line_of_a_worker_is_json_including_those_of_the_pool() -> None:
    """The pool reports dead processes through billiard's logger."""
    run = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)

    assert [json.loads(line)["message"] for line in run.stderr.splitlines()] == ["two\nlines"] * 2


LOGGING = """
import logging, sys
from celery import Celery
from celery.signals import after_setup_logger, setup_logging
from a2a_celery import A2A
from a2a_celery.telemetry.logging_setup import set_up

ways, log_format, process = sys.argv[1:]
app = Celery("app", broker="memory://")
app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_log_format=log_format)
a2a = A2A(app)
app.set_current()
theirs = logging.StreamHandler()
theirs.setFormatter(logging.Formatter("theirs %(message)s"))

def replace_logging(**_):
    logging.getLogger().handlers[:] = [theirs]

def replace_formatter(logger, **_):
    for handler in logger.handlers:
        handler.setFormatter(theirs.formatter)

if "signal" in ways:
    setup_logging.connect(replace_logging)
if "after" in ways:
    after_setup_logger.connect(replace_formatter)
if "import" in ways:
    replace_logging()
if "kept" in ways:
    app.conf.worker_hijack_root_logger = False
if process == "worker":
    app.log.setup(loglevel="INFO")
else:
    set_up(app, "info", log_format)
logging.getLogger("acme").warning("two\\nlines")
"""


@pytest.mark.parametrize("process", ["worker", "gateway or watcher"])
@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    ("ways", "is_theirs"),
    [
        ("signal", True),  # a receiver of setup_logging
        ("after", True),  # a receiver of after_setup_logger
        ("import,kept", True),  # handlers of the app, with worker_hijack_root_logger = False
        ("import", False),  # handlers that Celery replaces
        ("none", False),
    ],
)
def test_one_rule_decides_who_configures_logging_in_each_process(
    ways: str, is_theirs: bool, log_format: str, process: str
) -> None:
    command = [sys.executable, "-c", LOGGING, ways, log_format, process]

    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert log.startswith("theirs ") is is_theirs
    if not is_theirs and log_format == "json":
        assert json.loads(log)["message"] == "two\nlines"
    elif not is_theirs and process != "worker":
        assert log.endswith(" WARNING acme: two\\x0alines\n")


@pytest.mark.parametrize("state", ["=" * 60_000, ",".join(f"k{n}=" + "v" * 250 for n in range(32))])
def test_a_client_s_trace_state_is_dropped_without_a_log_line(state: str, caplog: pytest.LogCaptureFixture) -> None:
    """A trace state that is not dropped would be in each span, run record and message."""
    spans = Spans(TracerProvider())
    fields = {"traceparent": PARENT, "tracestate": state}

    with spans.within(spans.parent_of(fields)):
        current = spans.current()

    assert current == {"traceparent": PARENT}
    assert not caplog.records


@pytest.mark.parametrize(("traceparent", "expected"), [("", {}), (PARENT, {"traceparent": PARENT})])
def test_a_post_is_made_although_tracing_is_switched_off(
    traceparent: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Post with a provider whose spans have no ids, because ``OTEL_SDK_DISABLED`` is set."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    with Spans(TracerProvider()).posting(traceparent, {}) as (_, headers):
        assert headers == expected


def test_options_start_with_their_trace() -> None:
    """The store's scripts look for the trace at the start of the options."""
    options = RunOptions(celery={"queue": '{"trace":'}, trace={"traceparent": PARENT, "tracestate": "a=1"})

    assert options.to_json().startswith(b'{"trace":{"traceparent":"' + PARENT.encode())
    assert RunOptions.from_json(options.to_json()) == options
    later_options = replace(options, not_before=datetime(2000, 1, 1, tzinfo=UTC))
    assert later_options.to_json().startswith(b'{"not_before_us":946684800000000,"trace":{"traceparent":"')
    assert RunOptions.from_json(later_options.to_json()) == later_options
    assert RunOptions().to_json() == b""
