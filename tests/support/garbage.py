"""Objects that only Python's cycle collector can free."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class Garbage:
    """Unreachable objects that a block of code created.

    Attributes:
        bytes: Total size of the objects.
        types: Number of objects for each class name. The name of a frame or traceback includes the function, because
            one exception leaves a frame of each function that it has passed.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.types: Counter[str] = Counter()


def _type_name(garbage: object) -> str:
    name = type(garbage).__name__
    if isinstance(garbage, TracebackType):
        garbage = garbage.tb_frame
    if isinstance(garbage, FrameType):
        return f"{name} of {garbage.f_code.co_qualname} in {garbage.f_code.co_filename}"
    return name


@contextmanager
def cyclic_garbage() -> Iterator[Garbage]:
    """Measure the objects that the block leaves in reference cycles. The collector is disabled while the block runs."""
    garbage = Garbage()
    gc.collect()
    gc.freeze()  # exclude earlier objects, because a pass over the millions of objects of a suite takes a second
    gc.disable()
    tracemalloc.start()
    try:
        yield garbage
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        gc.collect()  # empty Python's free lists, because they are not garbage
        garbage.types.update(map(_type_name, gc.garbage))
        allocated_bytes = tracemalloc.get_traced_memory()[0]
        gc.garbage.clear()
        gc.collect()
        garbage.bytes = allocated_bytes - tracemalloc.get_traced_memory()[0]
    finally:
        gc.set_debug(0)
        tracemalloc.stop()
        gc.enable()
