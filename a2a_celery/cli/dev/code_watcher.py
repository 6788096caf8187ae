"""Detection of changed Python files with watchfiles, for ``a2a dev --reload``."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from ...errors import ConfigError

QUIET_TIME = 200
"""Milliseconds without a further change after which changes are reported, because a tool may still be writing files."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders without code of the app. Hidden folders and virtual environments are skipped too."""


def require_watchfiles() -> None:
    """Check that watchfiles is installed.

    Raises:
        ConfigError: watchfiles is not installed.
    """
    if find_spec("watchfiles") is None:
        raise ConfigError("--reload needs watchfiles: pip install 'a2a-celery[reload]'")


async def changed_files(folder: Path) -> AsyncIterator[list[Path]]:
    """Yield the sorted paths of Python files in `folder` that were written, added or removed.

    Raises:
        ConfigError: The folder cannot be watched.
    """
    from watchfiles import awatch  # noqa: PLC0415 - an extra that only --reload needs

    def is_code(_: object, path: str) -> bool:
        return _is_code(Path(path), folder)

    try:
        async for changes in awatch(folder, watch_filter=is_code, step=QUIET_TIME, ignore_permission_denied=True):
            yield sorted({Path(path) for _, path in changes})
    except OSError as e:  # the system has a limit for watched folders
        raise ConfigError(f"cannot watch {folder} ({e}): set WATCHFILES_FORCE_POLLING=true") from e


def syntax_error(path: Path) -> str:
    """Return the syntax error in a Python file with the line number, or "" if the file compiles or was removed."""
    try:
        compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        return "".join(traceback.format_exception_only(e)).rstrip()
    except OSError:
        pass
    return ""


def _is_code(path: Path, folder: Path) -> bool:
    return path.suffix == ".py" and not any(
        parent.name in SKIPPED_FOLDERS or parent.name.startswith(".") or (parent / "pyvenv.cfg").exists()
        for parent in path.parents
        if parent.is_relative_to(folder) and parent != folder
    )
