"""Watcher that detects changed Python files in a folder by modification time and size."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

POLL_INTERVAL = 0.5
"""Seconds between two polls of the files."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders without code of the app. Hidden folders and virtual environments are skipped too."""

Stamp = tuple[int, int]
"""Modification time of a file in nanoseconds, and its size in bytes."""


class CodeWatcher:
    """Watcher that compares the Python files in `folder` with their state at the last poll."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps = self._read()
        self._changed: set[Path] = set()

    def poll(self) -> list[Path]:
        """Return the paths, relative to the folder, of files that were written, added or removed.

        The list stays empty until a poll finds no further change, because a tool may still be writing files.
        """
        previous_stamps, self._stamps = self._stamps, self._read()
        changed_paths = {path for path, _ in previous_stamps.items() ^ self._stamps.items()}
        self._changed |= changed_paths
        if changed_paths:
            return []
        paths, self._changed = self._changed, set()
        return sorted(path.relative_to(self._folder) for path in paths)

    def _read(self) -> dict[Path, Stamp]:
        stamps = {}
        for path in _python_files(self._folder):
            with suppress(OSError):  # the file was removed after its folder was listed
                status = path.stat()
                stamps[path] = status.st_mtime_ns, status.st_size
        return stamps


def syntax_error(path: Path) -> str:
    """Return the syntax error in a Python file with the line number, or "" if the file compiles or was removed."""
    try:
        compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        return "".join(traceback.format_exception_only(e)).rstrip()
    except OSError:
        pass
    return ""


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _has_code(Path(parent), name)]
        for name in names:
            if name.endswith(".py"):
                yield Path(parent) / name


def _has_code(parent: Path, name: str) -> bool:
    return not (name in SKIPPED_FOLDERS or name.startswith(".") or (parent / name / "pyvenv.cfg").exists())
