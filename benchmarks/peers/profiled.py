"""Agents of the benchmarks, in a process that profiles itself. See `benchmarks.profile`.

The signal `BEGIN` begins the profile, and `END` writes it to the file in `PROFILE_FILE`. The profile is one of function
calls, or of allocated memory if `PROFILE_MEMORY` is set.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from cProfile import Profile
from pathlib import Path
from types import FrameType

from .agents import a2a, app

__all__ = ["a2a", "app"]

FILE = Path(os.environ["PROFILE_FILE"])
calls = Profile()

BEGIN, END = signal.SIGRTMIN, signal.SIGRTMIN + 1  # Celery uses SIGUSR1 and SIGUSR2


def begin(_number: int, _frame: FrameType | None) -> None:
    """Begin the profile."""
    if "PROFILE_MEMORY" in os.environ:
        tracemalloc.start()
    else:
        calls.enable()
    FILE.with_suffix(".begun").touch()


def end(_number: int, _frame: FrameType | None) -> None:
    """Write the profile to `FILE`."""
    written = FILE.with_suffix(".part")
    if "PROFILE_MEMORY" in os.environ:
        gc.collect()
        tracemalloc.take_snapshot().dump(str(written))
    else:
        calls.disable()
        written.write_text(json.dumps([*function_calls()]))
    written.rename(FILE)


def function_calls() -> Iterator[tuple[str, int, float]]:
    """Yield the file of each Python function, with the number of calls and the time in seconds. Both include the C
    functions that the function calls."""
    for function in calls.getstats():
        if isinstance(function.code, str):  # a C function
            continue
        called = [entry for entry in function.calls or () if isinstance(entry.code, str)]
        number = function.callcount + sum(entry.callcount for entry in called)
        yield function.code.co_filename, number, function.inlinetime + sum(entry.inlinetime for entry in called)


signal.signal(BEGIN, begin)
signal.signal(END, end)
