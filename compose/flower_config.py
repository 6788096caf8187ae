"""Flower's own configuration: who may see it, and revoke and shut down with it."""

from pathlib import Path

basic_auth = [Path("/run/secrets/flower_auth").read_text(encoding="utf-8").strip()]
"""``user:password``; asked for by its pages and its API."""
