"""Measure the time from a client's CancelTask to the response with the state CANCELED.

    python -m benchmarks.cancel [times]

The client, the gateway and the worker are separate processes. The agent waits and can be cancelled at once. The
duration of a GetTask shows how fast the machine is.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from math import ceil
from pathlib import Path
from typing import Any

import httpx

from tests.support.processes.fleet import running_fleet

LIMIT = 50.0
"""Maximum 95th percentile in milliseconds. If cancelling takes longer on an idle machine, a component waits for a
timer."""

HEADERS = {"A2A-Version": "1.0"}


def main(times: int) -> int:
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        fleet.worker(concurrency=1)
        base = f"{fleet.gateway().url}/agents/silent"
        with httpx.Client(headers=HEADERS, timeout=60) as client:
            for _ in range(3):  # warm up
                cancel(client, base)
            answers = sorted((cancel(client, base) for _ in range(times)), key=lambda pair: pair[1])
    reads, cancels = sorted(read for read, _ in answers), [cancelled for _, cancelled in answers]
    print(f"{times} cancels, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"  GetTask      p50 {at(reads, 50):6.1f} ms   p95 {at(reads, 95):6.1f} ms")
    print(
        f"  CancelTask   p50 {at(cancels, 50):6.1f} ms   p95 {at(cancels, 95):6.1f} ms   (limit for p95 {LIMIT:g} ms)"
    )
    return 0 if at(cancels, 95) <= LIMIT else 1


def cancel(client: httpx.Client, base: str) -> tuple[float, float]:
    """Start a task and cancel it. Return the durations of the last GetTask and of CancelTask, in milliseconds."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "60"}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    task: dict[str, Any] = client.post(f"{base}/message:send", json=body).json()["task"]
    until = time.perf_counter() + 60
    while task["status"]["state"] != "TASK_STATE_WORKING":
        assert time.perf_counter() < until, task
        task, read = timed(client, "GET", f"{base}/tasks/{task['id']}")
    task, cancelled = timed(client, "POST", f"{base}/tasks/{task['id']}:cancel")
    assert task["status"]["state"] == "TASK_STATE_CANCELED", task
    return read, cancelled


def timed(client: httpx.Client, method: str, url: str) -> tuple[dict[str, Any], float]:
    """Send a request. Return the response and the duration in milliseconds."""
    began = time.perf_counter()
    answer: dict[str, Any] = client.request(method, url).json()
    return answer, (time.perf_counter() - began) * 1000


def at(values: list[float], percent: int) -> float:
    """Return the smallest of the sorted `values` that at least `percent` of the values do not exceed (nearest rank)."""
    return values[ceil(len(values) * percent / 100) - 1]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
