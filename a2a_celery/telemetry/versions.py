"""Installed versions of the packages whose versions must be equal in all processes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTIONS = ("a2a-celery", "a2a-sdk", "celery")
"""Packages whose versions must be equal on gateways, workers and watchers."""


def versions() -> dict[str, str]:
    """Return the version of each package by name, or "" if the package is not installed as a distribution."""
    return {name: _version(name) for name in DISTRIBUTIONS}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
