"""Prometheus queries of the dashboard and the alerts in compose/observability/."""

from __future__ import annotations

import json
import re

import yaml

from tests.support import ROOT

FOLDER = ROOT / "compose" / "observability"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))


def panels() -> dict[str, list[str]]:
    """Return the queries of each panel by title. One minute replaces Grafana's variable for the rate interval."""
    return {
        panel["title"]: [target["expr"].replace("$__rate_interval", "1m") for target in panel["targets"]]
        for panel in DASHBOARD["panels"]
        if panel["type"] != "row"
    }


def alerts() -> dict[str, str]:
    """Return the expression of each alert by name."""
    [group] = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics in a query. Names of histograms have no suffix "_bucket"."""
    return {re.sub("_bucket$", "", name) for name in re.findall(r"\b(?:a2a|flower)_\w+", expression)}
