"""Files of the store's scripts."""

from __future__ import annotations

from pathlib import Path

from a2a_celery.store import operation


def script_files() -> list[Path]:
    """Return the files of all scripts of the store and of features, without libraries and sections."""
    files = [*operation.SCRIPTS.glob("*/*.lua"), *operation.FEATURES.rglob("*.lua")]
    return sorted(path for path in files if path.parent.name != "lib" and not path.stem.endswith("section"))
