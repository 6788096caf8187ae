"""CPU time and memory of processes, as the kernel counts them. On a busy machine, they vary less than wall-clock
time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import psutil

KIB = 1024


def seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU time of each process and its children so far, in seconds, by name."""
    return {name: sum(sum(process.cpu_times()[:2]) for process in _tree(pid)) for name, pid in processes.items()}


def resident_kib(pid: int) -> float:
    """Return the resident memory of a process and its children in KiB."""
    return sum(process.memory_info().rss for process in _tree(pid)) / KIB


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    alive = [root]
    with suppress(psutil.NoSuchProcess):
        alive += root.children(recursive=True)
    return alive
