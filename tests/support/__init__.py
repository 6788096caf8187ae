"""Support for the tests: real servers and processes (``fleet``), agents (``agents``), waiting (``waiting``)."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Root of the repository."""
