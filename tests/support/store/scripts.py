"""Files of the store's scripts."""

from __future__ import annotations

from pathlib import Path

from a2a_celery.store import operation


def script_files() -> list[Path]:
    """Return the files of all scripts of the store and of features, without libraries and sections."""
    folders = (operation.SCRIPTS, operation.FEATURES)
    files = [path for folder in folders for path in folder.glob("*/*.lua") if path.parent.name != "lib"]
    return sorted(path for path in files if not path.stem.endswith("section"))
