"""compose/observability.yaml in containers: a collector's trace, Prometheus, its rules and the dashboard's queries.

The collector is Rotel, and Prometheus is Debian's package, because no package registry has Jaeger or the image of
Prometheus. Grafana does not run. docs/telemetry.md documents this.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import pytest

from tests.support import ROOT
from tests.support.clients.bindings import message_json, rest
from tests.support.receivers.collector import CollectedSpan, path_to
from tests.support.receivers.dashboards import alerts, metrics_in, panels
from tests.support.waiting import LIMIT, eventually

from .deployment import Deployment, run_deployment
from .engine import buildable, run
from .traces import spans

HERE = Path(__file__).parent
FAILED_TICKS = "Failed ticks per second"
REFUSED = "Requests refused by limits, per second"
"""Titles of two panels that are empty in a healthy fleet without limits."""

VERSIONS = "a2a_version_tasks"
"""Metric of agents with a version. The agents of this test have no version."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Deployment with the commands of docs/deployment.md, whose image adds an app to the project's image."""
    images = {name: f"a2a-celery-test-{name}" for name in ("jaeger", "prometheus", "grafana")}
    checkout = Deployment(
        tmp_path_factory.mktemp("observed") / "checkout",
        "observability",
        A2A_IMAGE="a2a-celery-test-acme",
        A2A_ALLOW_NETWORKS="10.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
        **{f"{name.upper()}_IMAGE": image for name, image in images.items()},
    )
    for name, image in images.items():
        stand_in = f"docker build -t {image} -f {HERE}/stand_ins/{name}.Dockerfile {HERE}/stand_ins"
        run(buildable(stand_in), HERE, checkout.env)
    build_acme(checkout, tmp_path_factory.mktemp("acme"))
    with run_deployment(checkout) as deployment:
        yield deployment


def build_acme(deployment: Deployment, folder: Path) -> None:
    """Build the image of docs/deployment.md#your-agents."""
    [dockerfile] = re.findall(r"^```dockerfile\n(.*?)^```", (ROOT / "docs/deployment.md").read_text(), re.M | re.S)
    (folder / "Dockerfile").write_text(dockerfile)
    shutil.copy(HERE / "acme.py", folder)
    deployment.run("docker build -t a2a-celery -f compose/Dockerfile .")
    run(buildable("docker build -t a2a-celery-test-acme ."), folder, deployment.env)


@pytest.fixture(scope="module")
def receiver(deployment: Deployment) -> Iterator[str]:
    """Run a webhook receiver at http://hook in the watchers' network, and yield the id of its container."""
    code = f"-v {HERE}/receiver.py:/receiver.py:ro"
    place = f"--network {deployment.project}_default --network-alias hook"
    container_id = run(
        f"docker run -d {place} {code} python:3.11-slim-bookworm python -u /receiver.py", HERE, deployment.env
    )
    yield container_id.strip()
    run(f"docker rm -f {container_id.strip()}", HERE, deployment.env)


def ask(deployment: Deployment, query: str) -> list[dict[str, Any]]:
    """Return Prometheus's response to a query."""
    answer = httpx.get(f"{deployment.prometheus}/api/v1/query", params={"query": query}, timeout=LIMIT).json()
    assert answer["status"] == "success", (query, answer)
    samples: list[dict[str, Any]] = answer["data"]["result"]
    return samples


def collected_spans(deployment: Deployment, trace: str) -> list[CollectedSpan]:
    """Return the spans of a trace from the collector's output."""
    text = deployment.compose("exec", "-T", "jaeger", "cat", "/tmp/traces")
    return [span for span in spans(text) if span.trace == trace]


def test_the_whole_path_is_in_one_trace_that_a_collector_wrote(deployment: Deployment, receiver: str) -> None:
    trace, call = token_hex(16), token_hex(8)
    hook = {"configuration": {"taskPushNotificationConfig": {"url": "http://hook/"}, "returnImmediately": True}}
    body = message_json("hello") | hook
    answer = rest(deployment, "POST", "/message:send", body, agent="thinker", traceparent=f"00-{trace}-{call}-01")
    assert answer.status_code == 200, answer.text
    span_names = {
        "a2a SendMessage",
        "publish a2a.thinker",
        "run a2a.thinker",
        "thinks",
        "store settle_run",
        "POST webhook",
    }

    def complete() -> list[CollectedSpan] | None:
        trace_spans = collected_spans(deployment, trace)
        return trace_spans if span_names <= {span.name for span in trace_spans} else None

    trace_spans = eventually(complete, every=1, what="the trace is whole")

    assert trace_spans is not None
    spans_by_name = {span.name: span for span in trace_spans}
    request, run_span = spans_by_name["a2a SendMessage"], spans_by_name["run a2a.thinker"]
    assert (request.service, request.parent, request.attributes["a2a.agent"]) == ("gateway", call, "thinker")
    assert [(span.service, span.scope, span.name) for span in path_to(spans_by_name["thinks"], trace_spans)] == [
        ("gateway", "a2a_celery", "a2a SendMessage"),
        ("gateway", "a2a_celery", "publish a2a.thinker"),
        ("worker", "a2a_celery", "run a2a.thinker"),
        ("worker", "acme", "thinks"),
    ]
    assert "a2a.appended" in {event for span in trace_spans for event in span.events}
    assert [span.service for span in path_to(spans_by_name["store settle_run"], trace_spans)] == ["gateway"] * 2 + [
        "worker"
    ] * 2
    posts = [span for span in trace_spans if span.name == "POST webhook"]
    assert {(span.service, path_to(span, trace_spans)[0].id) for span in posts} == {("watcher", request.id)}
    assert run_span.attributes["a2a.outcome"] == "completed"
    output = run(f"docker logs {receiver}", HERE, deployment.env)
    trace_lines = {line for line in output.splitlines() if trace in line}
    assert trace_lines, output

    def collected_posts() -> set[str]:
        trace_spans = collected_spans(deployment, trace)
        return {f"posted in 00-{trace}-{span.id}-01" for span in trace_spans if span.name == "POST webhook"}

    eventually(lambda: trace_lines <= collected_posts(), every=1, what="the span of each received post is collected")


def test_prometheus_takes_the_files_as_they_are(deployment: Deployment) -> None:
    output = deployment.compose(
        "exec", "-T", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yaml"
    )
    assert f"SUCCESS: {len(alerts())} rules found" in output

    def target_list() -> dict[str, list[str]]:
        targets = httpx.get(f"{deployment.prometheus}/api/v1/targets", timeout=LIMIT).json()["data"]["activeTargets"]
        return {job: sorted(it["health"] for it in targets if it["labels"]["job"] == job) for job in JOBS}

    eventually(lambda: target_list() == JOBS, every=1, what="every gateway and watcher is scraped")
    rules = httpx.get(f"{deployment.prometheus}/api/v1/rules", timeout=LIMIT).json()["data"]["groups"][0]["rules"]
    assert [rule for rule in rules if rule.get("lastError")] == []
    assert [rule["name"] for rule in rules] == list(alerts())


JOBS = {"gateway": ["up", "up"], "watcher": ["up", "up"], "flower": ["up"]}


def test_each_alert_is_raised_by_what_it_is_for_and_by_nothing_else(deployment: Deployment) -> None:
    image = deployment.env["PROMETHEUS_IMAGE"]
    command = (
        f"docker run --rm --entrypoint promtool -v {ROOT}:/src:ro {image} test rules /src/tests/docker/alerts_test.yaml"
    )

    assert "SUCCESS" in run(command, HERE, deployment.env)


def test_the_dashboard_has_something_to_show(deployment: Deployment, receiver: str) -> None:
    shown_queries = [
        query for title, each in panels().items() if title not in (FAILED_TICKS, REFUSED) for query in each
    ]
    queries = [query for query in shown_queries if VERSIONS not in metrics_in(query)]
    missing_queries = list(queries)

    def all_answer() -> bool:
        traffic(deployment)
        missing_queries[:] = [query for query in missing_queries if not ask(deployment, query)]
        return not missing_queries

    try:
        eventually(all_answer, every=3)
    except AssertionError:
        raise AssertionError(f"nothing answers to {missing_queries}") from None
    for name in {name for query in [*queries, *alerts().values()] for name in metrics_in(query)}:
        assert ask(deployment, f'{{__name__=~"{name}(_bucket)?"}}'), name
    for expression in alerts().values():
        ask(deployment, expression)


def traffic(deployment: Deployment) -> None:
    """Send requests of each kind: a stream, a webhook, a cancellation and an invalid request."""
    hook = {"configuration": {"taskPushNotificationConfig": {"url": "http://hook/"}}}
    stream_response = rest(deployment, "POST", "/message:stream", message_json() | hook, agent="thinker")
    assert "COMPLETED" in stream_response.text
    immediate_body = message_json() | {"configuration": {"returnImmediately": True}}
    task_id = rest(deployment, "POST", "/message:send", immediate_body, agent="sleeper").json()["task"]["id"]
    is_working = lambda: "WORKING" in rest(deployment, "GET", f"/tasks/{task_id}", agent="sleeper").text  # noqa: E731
    eventually(is_working, every=0.1, what="it sleeps")
    assert rest(deployment, "POST", f"/tasks/{task_id}:cancel", {}, agent="sleeper").status_code == 200
    assert rest(deployment, "GET", "/tasks/unknown", agent="sleeper").status_code == 404


def test_grafana_gets_files_that_it_can_read(deployment: Deployment) -> None:
    for path in (
        "/etc/grafana/provisioning/datasources/a2a.yaml",
        "/etc/grafana/provisioning/dashboards/a2a.yaml",
        "/etc/grafana/dashboards/a2a.json",
        "/run/secrets/grafana_password",
    ):
        assert deployment.compose("exec", "-T", "grafana", "cat", path).strip(), path


def test_prometheus_reports_an_outage_of_redis(deployment: Deployment) -> None:
    [redis] = deployment.containers("redis")

    deployment.kill(redis)

    [failed_ticks] = panels()[FAILED_TICKS]
    for query in (alerts()["A2ANoGateway"], failed_ticks):
        eventually(lambda query=query: ask(deployment, query), every=1, what=query)  # type: ignore[misc]
    assert ask(deployment, alerts()["A2ANoWatcher"]) == []
