"""Small tmpfs that tests fill. Only root may mount a tmpfs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
LARGEST_PIECE = 2**30


class SmallDisk:
    """File system of `size` bytes, mounted at `folder` until `unmount`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fill all free pages while the block runs, so that writes to new pages fail with ENOSPC."""
        filler = self.folder / "filler"
        with filler.open("wb") as file:
            piece, end = LARGEST_PIECE, 0
            while piece >= PAGE:
                try:
                    os.posix_fallocate(file.fileno(), end, piece)
                    end += piece
                except OSError:
                    piece //= 2
        try:
            yield
        finally:
            filler.unlink()

    def unmount(self) -> None:
        """Unmount the file system, which deletes its content."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def is_available() -> bool:
    """Return True if this process may mount file systems."""
    return os.geteuid() == 0
