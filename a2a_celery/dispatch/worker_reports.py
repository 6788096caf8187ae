"""Reports of the workers that Celery's remote control reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery


def worker_reports(app: Celery, timeout: float, nodes: Sequence[str] = ()) -> dict[str, Mapping[str, Any]]:
    """Return the reports of the workers that reply within `timeout` seconds, by node name. With `nodes`, query only
    these workers, and return as soon as all these workers have replied.
    """
    target = {"destination": list(nodes), "limit": len(nodes)} if nodes else {}
    answers = app.control.broadcast("a2a_report", reply=True, timeout=timeout, **target) or []
    return {node: report for answer in answers for node, report in answer.items()}
