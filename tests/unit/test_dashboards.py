"""Dashboards and alerts in compose/observability/, whose queries and fields Prometheus and Grafana must know."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from a2a_celery.telemetry.names import METRICS
from tests.support import ROOT
from tests.support.receivers.dashboards import DASHBOARD, FOLDER, alerts, metrics_in, panels

EXPOSED = {metric.exposed: metric for metric in METRICS}
QUERIES = [(title, query) for title, queries in panels().items() for query in queries] + list(alerts().items())


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=[f"{n}-{panel}" for n, (panel, _) in enumerate(QUERIES)])
def test_each_query_uses_existing_metrics_and_labels(panel: str, query: str) -> None:
    names = {name for name in metrics_in(query) if name.startswith("a2a_")}
    assert names <= EXPOSED.keys()
    allowed_labels = {"job", "instance", "le", "worker", "type"} | {
        label for name in names for label in EXPOSED[name].labels
    }
    assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", query)) <= allowed_labels
    for labels in re.findall(r"\b(?:by|on) \((.*?)\)", query):
        assert set(labels.split(", ")) <= allowed_labels


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=[f"{n}-{panel}" for n, (panel, _) in enumerate(QUERIES)])
def test_metrics_of_the_store_are_never_summed_over_gateways(panel: str, query: str) -> None:
    for name in metrics_in(query) & {metric.exposed for metric in METRICS if metric.where == "store"}:
        for reading in re.finditer(rf"(\w+)(?: by \([\w, ]+\) |)\((?:(?:rate|increase)\()?{name}", query):
            assert reading[1] == "max", query


def test_the_dashboard_shows_every_metric() -> None:
    names = {name for queries in panels().values() for query in queries for name in metrics_in(query)}

    assert names >= EXPOSED.keys()


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    register_default_plugins()

    understood = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))

    assert _dropped_fields(DASHBOARD, understood) == []
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def _dropped_fields(source: Any, understood: Any, path: str = "") -> list[str]:
    """Return the fields of `source` that are not in `understood`."""
    if isinstance(source, dict) and isinstance(understood, dict):
        return [
            field
            for key, value in source.items()
            for field in _dropped_fields(value, understood.get(key), f"{path}/{key}")
        ]
    if isinstance(source, list) and isinstance(understood, list) and len(source) == len(understood):
        pairs = zip(source, understood, strict=True)
        return [
            field
            for number, (item, understood_item) in enumerate(pairs)
            for field in _dropped_fields(item, understood_item, f"{path}/{number}")
        ]
    return [] if source == understood else [path]


def test_the_dashboard_uses_the_provisioned_data_source() -> None:
    datasources = (FOLDER / "datasources.yaml").read_text(encoding="utf-8")
    data_sources = set(re.findall(r'"uid": "(\w+)"', json.dumps(DASHBOARD["panels"])))

    assert data_sources == {"prometheus"}
    assert "uid: prometheus, type: prometheus" in datasources


def test_the_page_has_the_alerts() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(A2A\w+)` \|", page, re.MULTILINE) == list(alerts())
    alert_tests = (ROOT / "tests" / "docker" / "alerts_test.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"alertname: (A2A\w+)", alert_tests)) == alerts().keys()
