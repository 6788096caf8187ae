"""Runs the demo as its reader would: waits until it is ready, does what it prints, stops it, and looks for leftovers.

python .ci/try_demo.py .venv/bin/a2a-celery demo
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

READY = "# Ready"
END = "# Ctrl-C stops everything"
LIMIT = 60.0
STEPS = 4
ANSWERS = "2\nFriday\n"
"""Answers to the questions of the tour's first step."""

TOUR_LIMIT = 240.0
"""Seconds for the tour, which kills a worker and a gateway."""
STOP_LIMIT = 15.0
"""Seconds within which everything stops: 5, and a margin for a loaded machine."""


def main(command: list[str]) -> int:
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not _has_redis(p))
    demo = subprocess.Popen(
        command, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    began, lines = time.monotonic(), []
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if line.strip() == END:
            break
        if time.monotonic() - began > LIMIT:
            break
    printed = "".join(lines)
    assert READY in printed, f"not ready:\n{printed}"
    assert END in printed, f"not whole:\n{printed}"
    print(f"ready after {time.monotonic() - began:.1f} s")
    block = printed[printed.index(READY) :]
    answered = subprocess.run(
        ["bash", "-c", block], input=ANSWERS, capture_output=True, text=True, timeout=TOUR_LIMIT, check=False
    )
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.count("COMPLETED") >= STEPS, answered.stdout
    print(answered.stdout[-600:])
    family = [psutil.Process(demo.pid), *psutil.Process(demo.pid).children(recursive=True)]
    demo.send_signal(signal.SIGINT)
    stopping = time.monotonic()
    demo.stdout.read()
    demo.wait(STOP_LIMIT + 5)
    psutil.wait_procs(family, timeout=STOP_LIMIT)
    took = time.monotonic() - stopping
    left = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    print(f"stopped after {took:.1f} s, exit code {demo.returncode}, {len(left)} processes left")
    return 0 if not left and took <= STOP_LIMIT and demo.returncode == 0 else 1


def _has_redis(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in ("redis-server", "valkey-server"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
