"""Traces from the client's span to the webhook's post, through real processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import kombu
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from a2a_celery.store import Keys, SyncStore
from a2a_celery.telemetry.names import Action, SpanEvent
from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    collect,
    message_json,
    request,
    rpc,
    sdk_client,
    service,
)
from tests.support.processes.fleet import Fleet, running_fleet
from tests.support.receivers.collector import CollectedSpan, Collector, collector, path_to
from tests.support.receivers.posts import DELIVERING, body_with_config
from tests.support.receivers.receiver import Receiver, receiver
from tests.support.waiting import eventually

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5
"""Span kinds of OTLP."""

OURS = "a2a_celery"
THOUGHT = "thinks"
CALL = "the client's call"


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as spans:
        yield spans


def traced_fleet(folder: Path, spans: Collector, **env: str) -> Any:
    """Return a context manager for a fleet whose processes export spans and log as JSON."""
    exporter_env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "A2A_LOG_FORMAT": "json",
    }
    return running_fleet(folder, app="tests.support.agents.traced_agents", **DELIVERING, **exporter_env, **env)


def one_of_each(fleet: Fleet) -> ServedFleet:
    """Start a watcher, a worker and a gateway, each with a service name for traces."""
    fleet.watcher(OTEL_SERVICE_NAME="watcher")
    worker = fleet.worker(OTEL_SERVICE_NAME="worker")
    return ServedFleet(fleet, fleet.gateway(grpc=True, OTEL_SERVICE_NAME="gateway"), worker)


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory, spans: Collector) -> Iterator[ServedFleet]:
    with traced_fleet(tmp_path_factory.mktemp("fleet"), spans) as fleet:
        yield one_of_each(fleet)


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


class Caller:
    """Client with a span. `headers` contain the trace context."""

    def __init__(self, spans: Collector) -> None:
        provider = TracerProvider(resource=Resource.create({"service.name": "client"}))
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{spans.url}/v1/traces")))
        span = provider.get_tracer("client").start_span(CALL)
        self.trace = f"{span.get_span_context().trace_id:032x}"
        self.headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(self.headers, set_span_in_context(span))
        span.end()


@pytest.fixture
def caller(spans: Collector) -> Caller:
    return Caller(spans)


def wait_for_spans(spans: Collector, caller: Caller, *names: str) -> list[CollectedSpan]:
    """Wait until the spans with these names are connected with the client's call, and return all spans of the trace.

    Processes export their spans at different times.
    """

    def complete() -> list[CollectedSpan]:
        trace_spans = spans.spans_of(caller.trace)
        below = Counter(span.name for span in trace_spans if path_to(span, trace_spans)[0].name == CALL)
        return trace_spans if Counter(names) <= below else []

    return eventually(complete, what=f"{names} below {CALL}")


def ours(path: list[CollectedSpan]) -> list[tuple[str, str, int]]:
    """Return service, name and kind of the spans of a path, without the SDK's spans."""
    return [(span.service, span.name, span.kind) for span in path if not span.scope.startswith("a2a-python-sdk")]


def the(spans: list[CollectedSpan], name: str) -> CollectedSpan:
    [matching_span] = [span for span in spans if span.name == name]
    return matching_span


def test_a_trace_goes_from_the_clients_call_to_the_post(
    served_fleet: ServedFleet, spans: Collector, hooks: Receiver, caller: Caller
) -> None:
    body = body_with_config(message_json("hello"), hooks.url("/traced"))
    task = rpc(served_fleet.gateway, "SendMessage", body, agent="thinker", **caller.headers)["result"]["task"]
    posts = hooks.wait_for("/traced", 5)

    names = ("store create_task", THOUGHT, "store settle_run", *["POST webhook"] * len(posts))
    trace_spans = wait_for_spans(spans, caller, *names)

    gateway_path = [("client", CALL, INTERNAL), ("gateway", "a2a SendMessage", INTERNAL)]
    run_path = [*gateway_path, ("gateway", "publish a2a.thinker", PRODUCER), ("worker", "run a2a.thinker", CONSUMER)]
    assert ours(path_to(the(trace_spans, "store create_task"), trace_spans)) == [
        *gateway_path,
        ("gateway", "store create_task", INTERNAL),
    ]
    assert ours(path_to(the(trace_spans, THOUGHT), trace_spans)) == [*run_path, ("worker", THOUGHT, INTERNAL)]
    assert ours(path_to(the(trace_spans, "store settle_run"), trace_spans)) == [
        *run_path,
        ("worker", "store settle_run", INTERNAL),
    ]
    for post in (span for span in trace_spans if span.name == "POST webhook"):
        assert ours(path_to(post, trace_spans)) == [*gateway_path, ("watcher", "POST webhook", CLIENT)]
    run = the(trace_spans, "run a2a.thinker")
    assert run.attributes["a2a.task.id"] == task["id"]
    assert run.attributes["celery.task_id"] == f"{task['id']}.1"
    assert (run.attributes["a2a.outcome"], run.has_failed) == ("completed", False)
    assert SpanEvent.APPENDED in run.events


def post_spans(trace_spans: list[CollectedSpan], many: int) -> list[CollectedSpan]:
    """Return the spans if they include at least `many` posts, or []."""
    return trace_spans if len([span for span in trace_spans if span.name == "POST webhook"]) >= many else []


def test_a_receiver_gets_the_trace_id_and_nothing_else(
    served_fleet: ServedFleet, spans: Collector, hooks: Receiver, caller: Caller
) -> None:
    body = body_with_config(message_json("hello"), hooks.url("/told"))
    headers = {**caller.headers, "tracestate": "vendor=secret", "baggage": "user=ann"}

    rpc(served_fleet.gateway, "SendMessage", body, agent="thinker", **headers)
    got = hooks.wait_for("/told", 5)

    for post in got:
        version, trace, _, flags = post.headers["traceparent"].split("-")
        assert (version, trace, int(flags, 16) & 1) == ("00", caller.trace, 1)
        assert not {"tracestate", "baggage"} & post.headers.keys()
    trace_spans = eventually(lambda: post_spans(spans.spans_of(caller.trace), len(got)), what="each post has a span")
    trace_ids = {post.headers["traceparent"].split("-")[2] for post in got}
    assert trace_ids == {span.id for span in trace_spans if span.name == "POST webhook"}


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "blocking"])
async def test_each_binding_takes_the_clients_trace(
    served_fleet: ServedFleet, spans: Collector, caller: Caller, binding: str, streaming: bool
) -> None:
    async with sdk_client(served_fleet.gateway, "sync-thinker", binding, streaming=streaming) as client:
        await collect(client.send_message(request("hello"), context=service(**caller.headers)))

    name = "a2a SendStreamingMessage" if streaming else "a2a SendMessage"
    trace_spans = wait_for_spans(spans, caller, THOUGHT)
    path = ours(path_to(the(trace_spans, THOUGHT), trace_spans))
    assert [step[:2] for step in path] == [
        ("client", CALL),
        ("gateway", name),
        ("gateway", "publish a2a.sync-thinker"),
        ("worker", "run a2a.sync-thinker"),
        ("worker", THOUGHT),
    ]
    call_span = the(trace_spans, name)
    assert call_span.kind == (SERVER if binding == "GRPC" else INTERNAL)  # over HTTP, the SDK creates the server's span
    assert call_span.attributes["a2a.task.id"] == the(trace_spans, "run a2a.sync-thinker").attributes["a2a.task.id"]


def test_the_child_of_an_agent_is_below_the_run_that_called_it(
    served_fleet: ServedFleet, spans: Collector, caller: Caller
) -> None:
    """The first run of the parent calls the child and is suspended. A watcher publishes the second run."""
    rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="delegates", **caller.headers)

    trace_spans = wait_for_spans(spans, caller, THOUGHT, "run a2a.delegates", "run a2a.delegates")
    parent_runs = {span.attributes["a2a.outcome"]: span for span in trace_spans if span.name == "run a2a.delegates"}
    path = path_to(the(trace_spans, THOUGHT), trace_spans)
    assert [step[:2] for step in ours(path)] == [
        ("client", CALL),
        ("gateway", "a2a SendMessage"),
        ("gateway", "publish a2a.delegates"),
        ("worker", "run a2a.delegates"),
        ("worker", "publish a2a.slow-thinker"),
        ("worker", "run a2a.slow-thinker"),
        ("worker", THOUGHT),
    ]
    assert parent_runs.keys() == {"suspended", "completed"}
    assert parent_runs["suspended"] in path
    resumed_path = [step[:2] for step in ours(path_to(parent_runs["completed"], trace_spans))]
    assert resumed_path[-2:] == [("watcher", "publish a2a.delegates"), ("worker", "run a2a.delegates")]


def test_the_child_at_a_url_is_below_the_run_that_called_it(
    served_fleet: ServedFleet, spans: Collector, caller: Caller
) -> None:
    url = f"{served_fleet.gateway.url}/agents/thinker"
    rpc(served_fleet.gateway, "SendMessage", message_json(url), agent="delegates-by-url", **caller.headers)

    trace_spans = wait_for_spans(spans, caller, THOUGHT, "run a2a.delegates-by-url")
    steps = [step[:2] for step in ours(path_to(the(trace_spans, THOUGHT), trace_spans))]
    below = steps[steps.index(("worker", "run a2a.delegates-by-url")) + 1 :]
    assert [step for step in below if step[0] != "worker"][:1] == [("gateway", "a2a SendMessage")]
    assert below[-2:] == [("worker", "run a2a.thinker"), ("worker", THOUGHT)]


def test_a_plain_task_belongs_to_the_trace_too(served_fleet: ServedFleet, spans: Collector, caller: Caller) -> None:
    message = message_json() | {"message": {**message_json()["message"], "parts": [{"data": {"number": 21}}]}}

    rpc(served_fleet.gateway, "SendMessage", message, agent="double", **caller.headers)

    trace_spans = wait_for_spans(spans, caller, THOUGHT, "run a2a.double")
    assert "run a2a.double" in [span.name for span in path_to(the(trace_spans, THOUGHT), trace_spans)]


def test_the_error_of_a_run_is_in_its_span_and_its_text_is_not(
    served_fleet: ServedFleet, spans: Collector, caller: Caller
) -> None:
    rpc(served_fleet.gateway, "SendMessage", message_json("a secret"), agent="breaks", **caller.headers)

    run = the(spans.wait_for(caller.trace, "run a2a.breaks"), "run a2a.breaks")
    assert (run.has_failed, run.attributes["a2a.outcome"]) == (True, "failed")
    assert all("secret" not in str(value) for value in run.attributes.values())


def test_a_run_that_a_watcher_publishes_is_in_its_trace(
    served_fleet: ServedFleet, spans: Collector, caller: Caller
) -> None:
    """Lose a run in the broker. The watcher republishes the run with the trace headers from the store."""
    store, keys = SyncStore(served_fleet.fleet.redis.store_url), Keys()
    assert served_fleet.worker is not None
    served_fleet.worker.stop()
    body = message_json("hello") | {"configuration": {"returnImmediately": True}}
    task = rpc(served_fleet.gateway, "SendMessage", body, agent="thinker", **caller.headers)["result"]["task"]
    spans.wait_for(caller.trace, "publish a2a.thinker")
    with kombu.Connection(served_fleet.fleet.broker_url) as connection:
        assert connection.default_channel.queue_purge(served_fleet.fleet.queue) == 1
    name, due_us = f"{task['id']}.1", (time() + 10) * 1e6
    eventually(lambda: store.redis.zscore(keys.dispatch, name) > due_us, what="the publication is recorded")
    store.redis.zadd(keys.dispatch, {name: 0})

    served_fleet.worker = served_fleet.fleet.worker(OTEL_SERVICE_NAME="worker")

    spans.wait_for(caller.trace, "run a2a.thinker")

    def published_by_watcher() -> bool:
        trace_spans = spans.spans_of(caller.trace)
        path = [step[:2] for step in ours(path_to(the(trace_spans, "run a2a.thinker"), trace_spans))]
        return path[2:] == [("watcher", "publish a2a.thinker"), ("worker", "run a2a.thinker")]

    eventually(published_by_watcher, what="the run follows from what the watcher published")
    store.close()


def test_log_lines_are_json_with_actions_ids_and_the_trace(served_fleet: ServedFleet, caller: Caller) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("x"), agent="thinker", **caller.headers)["result"][
        "task"
    ]
    celery_id = f"{task['id']}.1"
    assert served_fleet.worker is not None
    worker = served_fleet.worker

    def read_run_lines() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("celery_id") == celery_id]

    # Celery logs its last line after a2a_celery
    eventually(lambda: "celery.app.trace" in {line["logger"] for line in read_run_lines()}, what="all of it is logged")
    run_lines = read_run_lines()
    actions = [line["action"] for line in run_lines if "action" in line]
    assert actions == [Action.RUN_BEGUN, Action.RUN_ENDED]
    end_line = next(line for line in run_lines if line.get("action") == Action.RUN_ENDED)
    assert (end_line["task"], end_line["run"], end_line["agent"], end_line["outcome"]) == (
        task["id"],
        1,
        "thinker",
        "completed",
    )
    assert end_line["trace_id"] == caller.trace
    assert {"celery.worker.strategy", "celery.app.trace"} <= {line["logger"] for line in run_lines}  # Celery's own
    for process in served_fleet.fleet.processes:
        output = [line for line in process.output().splitlines() if "a2a_celery." in line or "uvicorn" in line]
        assert output
        assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in output), process.name


def test_celerys_own_instrumentation_may_be_on_as_well(tmp_path: Path, spans: Collector, caller: Caller) -> None:
    with traced_fleet(tmp_path, spans, TEST_CELERY_INSTRUMENTED="1") as fleet:
        gateway = fleet.gateway()
        fleet.worker(pool="solo")
        rpc(gateway, "SendMessage", message_json("hello"), agent="thinker", **caller.headers)
        trace_spans = wait_for_spans(spans, caller, THOUGHT)

    path = [step[1] for step in ours(path_to(the(trace_spans, THOUGHT), trace_spans))]
    celery_spans = ["apply_async/a2a.thinker", "run/a2a.thinker"]
    assert path == [CALL, "a2a SendMessage", "publish a2a.thinker", *celery_spans, "run a2a.thinker", THOUGHT]
