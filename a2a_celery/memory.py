"""Memory of a long-running process: malloc of the GNU C library, and Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os

MALLOC_OPTIONS = {"M_ARENA_MAX": (-8, 1), "M_MMAP_THRESHOLD": (-3, 1 << 25), "M_TRIM_THRESHOLD": (-1, 1 << 27)}
"""Number and value of each parameter of mallopt. Source: malloc.h of the GNU C library."""


def keep_freed_memory() -> None:
    """Keep up to 128 MiB of freed memory in the process, with the GNU C library, unless the environment configures its
    malloc.

    By default, the library returns the memory of each large body to the kernel. The page faults of the next allocations
    take about half of the CPU time of a message of 6 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        for number, value in MALLOC_OPTIONS.values():
            mallopt(number, value)


def freeze_heap(*, collect: bool = True) -> None:
    """Exclude all objects that exist now from garbage collection.

    The objects that exist after the start of a process live as long as the process: about 180,000 objects of a gateway,
    and 100,000 of a worker without agents. A full collection of these objects would stop the process for 50 to 100 ms.

    Args:
        collect: False to skip the collection before. A forked process would copy the memory that it shares.
    """
    if collect:
        gc.collect()
    gc.freeze()
