"""Which releases of what matters between processes are installed here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTIONS = ("a2a-celery", "a2a-sdk", "celery")
"""What gateways, workers and watchers should have the same release of."""


def versions() -> dict[str, str]:
    """The release of each distribution, by its name; "" for one that was not installed as such."""
    return {name: _version(name) for name in DISTRIBUTIONS}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
