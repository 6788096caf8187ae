"""Check that the 20,000th chunk of an artifact costs no more than the first.

    python -m benchmarks.chunks [chunks]

The benchmark streams one artifact through a gateway and a worker, and compares the time per chunk of the first and the
last thousand at the client. Then it reads the task, whose artifact must be complete.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.support.processes.fleet import running_fleet

LIMIT = 1.5
"""Maximum ratio of the last thousand to the first. A higher ratio means that the cost grows with the task."""

HEADERS = {"A2A-Version": "1.0"}
WINDOW = 1000


def main(chunks: int) -> int:
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        fleet.worker(concurrency=1)
        gateway = fleet.gateway(A2A_MAX_REQUEST_BYTES="1048576")
        base = f"{gateway.url}/agents/count"
        stream(base, WINDOW)  # warm up
        task_id, arrivals = stream(base, chunks)
        first, last = arrivals[WINDOW] - arrivals[0], arrivals[-1] - arrivals[-1 - WINDOW]
        began = time.perf_counter()
        task = httpx.get(f"{base}/tasks/{task_id}", headers=HEADERS, timeout=60).json()
        read = time.perf_counter() - began
    text = "".join(part["text"] for part in task["artifacts"][0]["parts"])
    is_complete = text == "".join(f"{n} " for n in range(chunks))
    print(f"{chunks} chunks, {len(arrivals) / (arrivals[-1] - arrivals[0]):.0f} a second")
    print(f"  first thousand   {first * 1000 / WINDOW:.3f} ms a chunk")
    print(f"  last thousand    {last * 1000 / WINDOW:.3f} ms a chunk")
    print(f"  last / first     {last / first:.2f}   (limit {LIMIT})")
    print(f"  GetTask          {read * 1000:.0f} ms, the artifact is {'complete' if is_complete else 'INCOMPLETE'}")
    return 0 if is_complete and last / first <= LIMIT else 1


def stream(base: str, chunks: int) -> tuple[str, list[float]]:
    """Stream a task. Return the task's id and the time at which each chunk arrived."""
    body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": str(chunks)}]}}
    arrivals: list[float] = []
    task_id = ""
    with httpx.stream("POST", f"{base}/message:stream", json=body, headers=HEADERS, timeout=300) as response:
        for line in response.iter_lines():
            if "artifactUpdate" in line and "lastChunk" not in line:  # not the empty chunk that ends the artifact
                arrivals.append(time.perf_counter())
            elif line.startswith('data: {"task"'):
                task_id = json.loads(line[6:])["task"]["id"]
    assert len(arrivals) == chunks, f"{len(arrivals)} of {chunks} chunks arrived"
    return task_id, arrivals


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
