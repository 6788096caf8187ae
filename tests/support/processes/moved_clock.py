"""Adjustable wall clock for child processes. A library in LD_PRELOAD adds an offset to their wall-clock time."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

SOURCE = Path(__file__).with_name("moved_clock.c")


class MovedClock:
    """Wall clock of the processes that are started with `environment`. A file in `folder` contains the offset."""

    def __init__(self, folder: Path) -> None:
        path = folder / "clock-offset"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library()), "A2A_TEST_CLOCK": str(path)}

    def set_offset(self, seconds: float) -> None:
        """Set the offset from this machine's clock. A negative offset sets the clock back."""
        self._offset[:] = struct.pack("=q", int(seconds * 1_000_000))


def is_available() -> bool:
    """Return True if this machine has a C compiler."""
    return shutil.which("cc") is not None


@cache
def library() -> Path:
    """Compile the library and return its path."""
    library_path = Path(mkdtemp(prefix="a2a-clock-")) / "moved_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library_path), str(SOURCE), "-ldl"], check=True)
    return library_path
