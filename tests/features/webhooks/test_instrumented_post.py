"""Metrics of a watcher's webhook posts."""

from __future__ import annotations

import pytest

from a2a_celery.features.webhooks.deliveries import DeliveryCursor
from a2a_celery.features.webhooks.instrumented_post import make_instrumented_post
from a2a_celery.push import Deferred, Delivered, PostRequest, PostResult
from a2a_celery.watcher.metrics import WatcherMetrics

REQUEST = PostRequest(url="https://hooks.example/a", headers={}, body=b"{}")
CURSOR = DeliveryCursor("t", "c", "echo", "config", b"", delivered=0, version=1, failures=0, failing_for=0.0, token="")


class PosterWithResult:
    """Poster with a fixed result."""

    def __init__(self, result: PostResult) -> None:
        self._result = result

    async def acquire_route(self, url: str, *, owner: str = "") -> PostResult:
        return self._result

    async def post(self, request: PostRequest, route: PostResult) -> PostResult:
        return self._result


@pytest.mark.parametrize(
    ("result", "counts"),
    [(Delivered(204), {"delivered": 1}), (Deferred(5.0, "its host is busy"), {})],
    ids=["delivered", "held"],
)
async def test_a_post_that_was_not_made_is_not_counted(result: PostResult, counts: dict[str, int]) -> None:
    metrics = WatcherMetrics()

    result_of_post = await make_instrumented_post(PosterWithResult(result), REQUEST, CURSOR, metrics, "1-2")  # type: ignore[arg-type]

    assert (result_of_post.result, result_of_post.attempt is None) == (result, not counts)

    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    outcome_counts = {s.labels["outcome"]: s.value for s in samples if s.name == "a2a_watcher_post_seconds_count"}
    assert outcome_counts == counts
